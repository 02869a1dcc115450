"""What `make compat-system` counts: pauses, and records that are lost, doubled or out of order."""

from __future__ import annotations

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
from tests.compat.system.page import CLIENTS, render
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
        "failed": ["saturating load: NOT_CONTROLLER"],
    }
    page = render({"kafka": result, "ottla": result})
    assert "| records acknowledged to VerifiableProducer | 1,000 | 1,000 |" in page
    assert f"| disk full |{' 1.5 |' * 8}" in page
    assert "Rolling upgrade" not in page
    assert "There is no finished run yet of: mixed." in page
    assert "- Ottla, not played to its end: saturating load: NOT_CONTROLLER" in page
    assert f"| disk full |{' 1.5 |' * 4}" in render({"mixed": result})


def test_each_trouble_says_what_it_does() -> None:
    assert all(each.__doc__ for each in (*TROUBLES.values(), *UPGRADE.values()))
