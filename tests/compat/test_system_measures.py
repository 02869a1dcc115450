"""What `make compat-system` counts: pauses, and records that are lost, doubled or out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.compat.system.measures import (
    Deliveries,
    Findings,
    check_copy,
    check_counts,
    check_log,
    longest_gap_ms,
    longest_pause_ms,
)
from tests.compat.system.page import CLIENTS, PAGE, render
from tests.compat.system.results import QUIET, Run, load, save, troubles
from tests.compat.system.run import chosen_troubles
from tests.compat.system.troubles import TROUBLES, UPGRADE


def test_the_longest_gap_counts_both_ends_of_the_window() -> None:
    assert longest_gap_ms([5, 200, 120, 950], 100, 1000) == 750
    assert longest_gap_ms([], 100, 1000) == 900
    assert longest_gap_ms([990], 100, 1000) == 890


def test_the_longest_pause_is_that_of_one_partition() -> None:
    assert longest_pause_ms({0: [100, 200, 300], 1: [100, 290]}, 0, 400) == 190
    assert longest_pause_ms({}, 0, 400) == 400


def test_a_log_as_it_should_be() -> None:
    findings = Findings()
    check_log(findings, "t", {0: {1: 0, 2: 1}}, {0: [1, 2, 4]})  # 4 was not acknowledged
    assert findings.clean


def test_a_log_that_lost_doubled_and_swapped() -> None:
    findings = Findings()
    check_log(findings, "t", {0: {1: 0, 2: 1, 3: 2}}, {0: [2, 1, 2]})
    assert (findings.lost, findings.doubled, findings.disordered) == (1, 1, 1)
    assert findings.examples[0] == "t-0: 1 doubled, first [2]"


def test_a_copy_is_its_source_up_to_the_position() -> None:
    source = [0, 1, 2, 3, 4]
    for copy, position, expected in (
        ([0, 1, 2], 3, (0, 0, 0)),
        ([0, 2], 3, (1, 0, 0)),
        ([0, 1, 2, 3], 3, (0, 1, 0)),
        ([0, 1, 1, 2], 3, (0, 1, 0)),
        ([1, 0, 2], 3, (0, 0, 1)),
    ):
        findings = Findings()
        check_copy(findings, "t", source, copy, position)
        assert (findings.lost, findings.doubled, findings.disordered) == expected, copy


def test_counts_of_a_key() -> None:
    findings = Findings()
    check_counts(findings, "k", [1, 2, 3], 3)
    assert findings.clean
    check_counts(findings, "k", [1, 3, 3, 4], 3)
    assert (findings.lost, findings.doubled, findings.disordered) == (1, 2, 0)


def test_deliveries_that_are_missing_and_repeated() -> None:
    deliveries = Deliveries()
    deliveries.add(0, 0, 4)
    deliveries.add(0, 3, 6)
    assert deliveries.missing(0, 9) == [7, 8]
    assert deliveries.repeated() == 2
    assert deliveries.missing(1, 1) == [0]


def test_the_page() -> None:
    pauses = dict.fromkeys(CLIENTS, 1500)
    counts = {
        "acknowledged": 1000,
        "delivered again": 3,
        "copied": 10,
        "copier failures": 0,
        "round trips": 5,
        "failed workloads": 0,
        "counted": 7,
    }
    result: dict[str, Any] = {
        "day": "2026-01-02",
        "seed": 1,
        "load": 2,
        "rows": [{"trouble": "disk full", **pauses}],
        "counts": counts,
        "lost": 0,
        "doubled": 0,
        "disordered": 0,
        "failed": [{"trouble": "saturating load", "reason": "NOT_CONTROLLER"}],
    }
    page = render({"kafka": [result], "ottla": [result]})
    assert "| records acknowledged to VerifiableProducer | 1,000 | 1,000 |" in page
    assert f"| disk full |{' 1.5 |' * 8}" in page
    assert "Rolling upgrade" not in page
    assert "There is no finished run yet of: mixed, control." in page
    assert "- Ottla, not played to its end: saturating load: NOT_CONTROLLER" in page
    assert f"| disk full |{' 1.5 |' * 4}" in render({"mixed": [result]})
    assert "| 2,000 |" in render({"ottla": [result, result]})
    assert "| disk full | 1.5 (1.5 to 1.5, 2) |" in render({"ottla": [result, result]})


def _run(*names: str, failed: str = "") -> Run:
    pauses = dict.fromkeys(CLIENTS, 1)
    return {
        "rows": [{"trouble": name, **pauses} for name in (QUIET, *names)],
        "failed": [{"trouble": failed, "reason": "no"}] if failed else [],
    }


def test_a_run_of_some_troubles_replaces_those_of_earlier_runs(tmp_path: Path) -> None:
    save("ottla", _run("a", "b", failed="c"), whole=True, folder=tmp_path)
    save("ottla", _run("b", "b", "c"), whole=False, folder=tmp_path)
    runs = load(tmp_path)["ottla"]
    found = {name: len(rows) for name, rows in troubles(runs).items()}
    assert found == {QUIET: 2, "a": 1, "b": 2, "c": 1}
    assert [run["failed"] for run in runs] == [[], []]
    save("ottla", _run("a"), whole=False, folder=tmp_path)
    assert len(load(tmp_path)["ottla"]) == 2, "nothing of the first run is left"
    save("ottla", _run("b"), whole=True, folder=tmp_path)
    assert len(load(tmp_path)["ottla"]) == 1


def test_troubles_are_chosen_by_a_part_of_their_names() -> None:
    names = [name for name, _ in chosen_troubles("ottla", ["kill -9", "isolated"], 2)]
    assert names == [
        *(["kill -9 of a broker"] * 2),
        *(["kill -9 of the controller"] * 2),
        *(["broker isolated"] * 2),
    ]
    assert [name for name, _ in chosen_troubles("control", [], 1)] == list(UPGRADE)


def test_the_page_is_that_of_the_kept_results() -> None:
    assert PAGE.read_text() == render(load()), "tests.compat.system.page.write_page() writes it"


def test_each_trouble_says_what_it_does() -> None:
    assert all(each.__doc__ for each in (*TROUBLES.values(), *UPGRADE.values()))
