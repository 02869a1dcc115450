"""What one process prints for several seeds is counted seed by seed."""

from tests.simulation.cluster.many import Sums, by_seed

SUMMARY = (
    "seed {}: {} complaints, plain 3; 5 troubles, 70 requests; "
    "90 virtual seconds in 4.5 s (20 a second), longest turn 3 steps in x, history 1f"
)


def test_a_process_that_plays_three_seeds() -> None:
    lines = [
        SUMMARY.format(7, 0),
        SUMMARY.format(9, 1),
        "t-0: a record is gone",
        "seed 9 fails with --troubles 2; the end of its history:",
        "    0.000 seed 9: a line of the trace",
        SUMMARY.format(11, 0),
        "1 of 3 seeds failed",
    ]
    found = by_seed("\n".join(lines))
    assert [seed for seed, _ in found] == ["7", "9", "11"]
    sums = Sums()
    for seed, output in found:
        sums.add(seed, output)
    assert (sums.seeds, sums.failed, sums.requests) == (3, ["9"], 210)
    assert "a record is gone" in found[1][1]


def test_a_seed_without_a_summary_has_failed() -> None:
    assert by_seed("Traceback") == []
    sums = Sums()
    sums.add("7", "Traceback")
    assert sums.failed == ["7"]
