"""The lists and tables of `make compat-kafka-tests`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.kafka_tests.jars import FOLDER
from tests.compat.kafka_tests.results import (
    FAILED,
    PASSED,
    AllowList,
    Result,
    parse_results,
    read_reasons,
    reason_for,
    short_name,
)
from tests.compat.kafka_tests.run import classes, replaced


def test_short_names() -> None:
    assert short_name("testSeek(String, String).quorum=zk.groupProtocol=classic") == (
        "testSeek.groupProtocol=classic"
    )
    assert short_name("testCreate(String).quorum=zk") == "testCreate"
    assert short_name("testIt [1] quorum=zk, x=true") == "testIt.x=true"
    assert short_name("testPlain()") == "testPlain"


def test_a_line_that_was_cut_off_is_no_result() -> None:
    row = {"class": "a.B", "test": "c()", "status": PASSED, "seconds": 1.5, "error": ""}
    line = json.dumps(row)
    assert parse_results([line, line[:30]]) == [Result("c", PASSED, 1.5, "")]


def test_the_list_of_what_passes_only_grows(tmp_path: Path) -> None:
    allowed = AllowList(tmp_path / "passes.txt")
    passed, failed = Result("one", PASSED, 1.0, ""), Result("two", FAILED, 1.0, "no")
    assert allowed.add("a.B", [passed, failed]) == 1
    assert allowed.add("a.B", [failed]) == 0
    again = AllowList(tmp_path / "passes.txt")
    assert again.tests == {"a.B one"}
    assert again.broken("a.B", [failed]) == ["one"]
    assert again.broken("a.B", [passed]) == []
    assert again.broken("a.C", []) == []


def test_a_single_test_replaces_its_row() -> None:
    one, two = Result("one", FAILED, 1.0, "no"), Result("two", PASSED, 1.0, "")
    again, third = Result("one", PASSED, 2.0, ""), Result("three", PASSED, 1.0, "")
    assert replaced([one, two], [again, third]) == [again, two, third]


def test_reasons() -> None:
    reasons = {("a.B", "one"): "first", ("a.B", "*"): "others"}
    assert reason_for(reasons, "a.B", "one.groupProtocol=classic") == "first"
    assert reason_for(reasons, "a.B", "two") == "others"
    assert reason_for(reasons, "a.C", "two") == ""


def test_the_lists_name_classes_that_are_run() -> None:
    run = classes()
    assert len(run) == len(set(run))
    assert {name for name, _ in read_reasons(FOLDER / "internals.txt")} <= set(run)
    allowed = AllowList(FOLDER / "passes.txt")
    assert {test.split()[0] for test in allowed.tests} <= set(run)
