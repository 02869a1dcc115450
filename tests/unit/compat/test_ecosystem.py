"""The results and the page of `make compat-ecosystem`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.ecosystem.catalogue import PROGRAMS, WANTED
from tests.compat.ecosystem.clusters import KAFKA, OTTLA
from tests.compat.ecosystem.model import Check, Program, Script
from tests.compat.ecosystem.page import PAGE, render
from tests.compat.ecosystem.results import Results, Run


def _run(*checks: Check) -> Run:
    return Run("2026-11-22", "0.1.0", "1.0", 5, checks)


def _program() -> Program:
    return Program("tool", "A tool", "1.0", (), lambda script: None, ("A note.",))


def test_a_failed_check_is_recorded_with_the_first_line_and_ends_the_script(tmp_path: Path) -> None:
    script = Script(OTTLA, tmp_path)
    with script.check("first"):
        pass
    with pytest.raises(ValueError, match="one"), script.check("second"):
        raise ValueError("one\ntwo")
    assert script.checks == [Check("first", True), Check("second", False, "one")]


def test_results_are_kept_for_each_kind_of_broker(tmp_path: Path) -> None:
    results = Results("tool", tmp_path)
    results.save(KAFKA, _run(Check("a", True), Check("b", True), Check("c", False, "why")))
    results.save(OTTLA, _run(Check("a", True), Check("b", False, "why")))
    again = Results("tool", tmp_path)
    assert again.runs == results.runs
    assert again.names() == ["a", "b", "c"]
    assert again.state(OTTLA, "c") is None
    assert again.differences() == ["b"], "what Kafka fails too is no difference"


def test_the_page_has_the_states_on_both_brokers(tmp_path: Path) -> None:
    results = Results("tool", tmp_path)
    results.save(KAFKA, _run(Check("a", True), Check("b", True)))
    results.save(OTTLA, _run(Check("a", True), Check("b", False, "why")))
    page = render([(_program(), results)])
    assert "| [A tool](#a-tool) | 1.0 | 2 | 1 | 2 | 2026-11-22 |" in page
    assert "| b | **no** | yes |" in page
    assert "A note." in page


def test_a_program_that_was_not_run_has_a_row_and_no_section(tmp_path: Path) -> None:
    page = render([(_program(), Results("tool", tmp_path))])
    assert "| A tool | 1.0 | - | not run | not run | - |" in page
    assert "## A tool" not in page


def test_the_page_says_who_wants_what_zookeeper_mode_does_not_have() -> None:
    rows = [line for line in render([]).splitlines() if "KIP-" in line]
    assert [tuple(row.strip("| ").split(" | ")) for row in rows] == list(WANTED)


def test_each_program_has_a_name_of_its_own() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names)


def test_nothing_that_passes_on_kafka_fails_on_ottla_in_the_kept_results() -> None:
    differences = {each.name: list(Results(each.name).differences()) for each in PROGRAMS}
    assert not {name: found for name, found in differences.items() if found}


def test_the_page_is_that_of_the_kept_results() -> None:
    page = render([(program, Results(program.name)) for program in PROGRAMS])
    assert PAGE.read_text("utf-8") == page, "python -m tests.compat.ecosystem.run --page writes it"
