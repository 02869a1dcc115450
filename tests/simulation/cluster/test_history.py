"""What the final checks make of offsets that clients have sent."""

from tests.simulation.cluster.history import History

KEY = ("group", "t-0")


def history() -> History:
    found = History()
    for number in (1, 2, 3, 4):
        found.offset_sent("group", "t", 0, number)
    found.offset_committed_in("group", "t", 0, 2)
    return found


def test_a_commit_that_timed_out_may_appear_with_the_next_load() -> None:
    assert history().may_appear(KEY, 4, 2)
    assert history().may_appear(KEY, 3, None)


def test_no_other_offset_may_appear() -> None:
    assert not history().may_appear(KEY, 5, 2)  # never sent
    assert not history().may_appear(KEY, 3, 4)  # memory had a later one
    assert not history().may_appear(KEY, 2, 1)  # acknowledged, so it was in memory
    assert not history().may_appear(KEY, None, 2)
    assert not history().may_appear(("group", "t-1"), 4, 2)
