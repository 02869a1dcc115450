"""The lists and tables of `make compat-kafka-tests`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kafka_tests import run as run_module
from tests.compat.kafka_tests.jars import FOLDER
from tests.compat.kafka_tests.jvm import read_lines
from tests.compat.kafka_tests.results import (
    FAILED,
    PASSED,
    AllowList,
    Kept,
    KeptResults,
    Result,
    Row,
    first_line,
    parse_row,
    read_not_run,
    read_reasons,
    reason_for,
    short_name,
)
from tests.compat.kafka_tests.run import by_class, classes


def test_short_names() -> None:
    assert short_name("testSeek(String, String).quorum=zk.groupProtocol=classic") == (
        "testSeek.groupProtocol=classic"
    )
    assert short_name("testCreate(String).quorum=zk") == "testCreate"
    assert short_name("testIt [1] quorum=zk, x=true") == "testIt.x=true"
    assert short_name("testPlain()") == "testPlain"


def test_a_line_that_was_cut_off_is_no_row() -> None:
    row = {"class": "a.B", "test": "c()", "status": PASSED, "seconds": 1.5, "error": ""}
    line = json.dumps(row)
    assert parse_row(line) == Row("a.B", Result("c", PASSED, 1.5, ""))
    assert parse_row(line[:30]) is None
    assert parse_row('{"class": "a.B"}') == Row("a.B", None)


def test_results_are_kept_with_their_date(tmp_path: Path) -> None:
    path = tmp_path / "results.tsv"
    one, two = Result("one", FAILED, 1.0, "no\nstack trace"), Result("two", PASSED, 1.0, "")
    KeptResults(path).replace("a.B", [one, two], "2026-01-01", whole=True)
    KeptResults(path).replace(
        "a.B", [one._replace(status=PASSED, error="")], "2026-01-02", whole=False
    )
    assert KeptResults(path).classes == {
        "a.B": {"one": Kept(PASSED, "2026-01-02", ""), "two": Kept(PASSED, "2026-01-01", "")}
    }
    KeptResults(path).replace("a.B", [one], "2026-01-03", whole=True)
    assert KeptResults(path).classes == {"a.B": {"one": Kept(FAILED, "2026-01-03", "no")}}
    KeptResults(path).replace("a.B", [], "2026-01-04", whole=True)
    assert KeptResults(path).classes["a.B"], "a run without results changes nothing"


def test_a_class_that_hangs_does_not_hold_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Result("one", PASSED, 1.0, "")

    def run_in_jvm(selectors: list[str], broker: str, silence_s: float) -> Iterator[Row]:
        if "a.First" in selectors:
            yield Row("a.First", passed)
            yield Row("a.First", None)
        if "a.Hangs" in selectors:
            yield Row("a.Hangs", passed)
            return
        yield Row("a.Last", passed)
        yield Row("a.Last", None)

    monkeypatch.setattr(run_module, "run_in_jvm", run_in_jvm)
    chosen = by_class(["a.First", "a.Hangs", "a.Last#one", "a.Last#two"])
    assert chosen["a.Last"] == ["a.Last#one", "a.Last#two"]
    ended = list(run_module.run_classes(chosen, "ottla", 1.0))
    assert [name for name, _ in ended] == ["a.First", "a.Hangs", "a.Last"]
    assert ended[1][1] == [passed]


def test_a_class_that_an_earlier_one_disturbs_runs_in_a_new_jvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = Result("one", PASSED, 1.0, "")
    error = "java.lang.AssertionError: Found 1 unexpected threads during @BeforeAll: `x`"
    disturbed = Result("Second", FAILED, 0.0, error)
    runs: list[list[str]] = []

    def run_in_jvm(selectors: list[str], broker: str, silence_s: float) -> Iterator[Row]:
        runs.append(selectors)
        for index, name in enumerate(selectors):
            yield Row(name, disturbed if index else passed)
            yield Row(name, None)

    monkeypatch.setattr(run_module, "run_in_jvm", run_in_jvm)
    ended = list(run_module.run_classes(by_class(["a.First", "a.Second"]), "ottla", 1.0))
    assert ended == [("a.First", [passed]), ("a.Second", [passed])]
    assert runs == [["a.First", "a.Second"], ["a.Second"]]


def test_a_jvm_that_is_silent_is_stopped() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as stream, os.fdopen(write_end, "wb", buffering=0) as writer:
        writer.write(b"one\ntwo\nhal")
        assert list(read_lines(stream, 0.01)) == ["one", "two"]


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
    assert not set(read_not_run(FOLDER / "not_run.txt")) & set(run)


def test_kept_errors_name_no_folders_of_the_machine() -> None:
    error = "ottla: /tmp/x-1/brokers/server.properties:4: a/b, http://host/path/x\nmore"
    assert first_line(error) == "ottla: server.properties:4: a/b, http://host/path/x"
