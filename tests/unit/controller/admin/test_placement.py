"""Where replicas of new partitions go."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.admin.placement import alternate_racks, place, start_after


def without_racks(*ids: int) -> dict[int, str | None]:
    return dict.fromkeys(ids)


def test_the_worked_table() -> None:
    placed = place(without_racks(0, 1, 2, 3, 4), 10, 3, start=0, shift=0)
    assert placed == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_one_broker() -> None:
    assert place(without_racks(7), 3, 1, start=5, shift=5) == {0: (7,), 1: (7,), 2: (7,)}


def test_added_partitions_go_on_where_the_topic_stands() -> None:
    whole = place(without_racks(0, 1, 2), 6, 2, start=1, shift=1)
    first = place(without_racks(0, 1, 2), 4, 2, start=1, shift=1)
    # The round of the shift is the topic's, so the same start gives partitions in the same rows.
    added = place(without_racks(0, 1, 2), 2, 2, start=1, shift=1, first_partition=4)
    assert {**first, **{p: whole[p] for p in (4, 5)}} == whole
    assert [replicas[0] for replicas in added.values()] == [whole[4][0], whole[5][0]]


def test_start_after() -> None:
    assert start_after([1, 3, 5], 3) == 1
    assert start_after([5, 3, 1], 4) == 2
    assert start_after([1, 3], 9) == 0


def test_racks_alternate() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "a"}
    assert alternate_racks(racks) == [0, 2, 4, 1, 3, 5]


def test_no_rack_twice_before_every_rack_once() -> None:
    racks: dict[int, str | None] = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    placed = place(racks, 12, 3, start=0, shift=0)
    for replicas in placed.values():
        assert {racks[replica] for replica in replicas} == {"a", "b", "c"}
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert set(leaders.values()) == {2}


def test_more_replicas_than_racks() -> None:
    racks: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in place(racks, 8, 3, start=0, shift=0).values():
        assert len(set(replicas)) == 3
        assert {racks[replica] for replica in replicas} == {"a", "b"}


def test_a_broker_without_rack_means_placement_without_racks() -> None:
    some: dict[int, str | None] = {0: "a", 1: None, 2: "a"}
    assert place(some, 3, 2, start=0, shift=0) == place(
        without_racks(0, 1, 2), 3, 2, start=0, shift=0
    )


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from(["a", "b", "c", None]), min_size=1),
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_every_placement_is_sound(
    racks: dict[int, str | None], partitions: int, factor: int, start: int, shift: int
) -> None:
    factor = min(factor, len(racks))
    placed = place(racks, partitions, factor, start=start, shift=shift)
    assert list(placed) == list(range(partitions))
    for replicas in placed.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
    if all(rack is not None for rack in racks.values()):
        rack_count = len(set(racks.values()))
        for replicas in placed.values():
            used = {racks[replica] for replica in replicas}
            assert len(used) == min(factor, rack_count)
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in racks) <= 1
