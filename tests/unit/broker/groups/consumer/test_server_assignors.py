"""The assignors of the broker: what each member is given, and what stays where it was."""

from __future__ import annotations

import pytest

from ottla.broker.groups.consumer.cluster_topics import TopicDescription
from ottla.broker.groups.consumer.member import Assignment, ConsumerMember
from ottla.broker.groups.consumer.server_assignors import ASSIGNORS, RANGE, UNIFORM, assign
from ottla.protocol.steps import run_at_once

A, B = b"a" * 16, b"b" * 16
TOPICS = {"a": TopicDescription(A, "a", 4, {}), "b": TopicDescription(B, "b", 4, {})}
BOTH = frozenset({"a", "b"})


def shares(
    assignor: str,
    subscriptions: dict[str, frozenset[str]],
    targets: dict[str, Assignment] | None = None,
) -> dict[str, Assignment]:
    members = [ConsumerMember(member_id) for member_id in subscriptions]
    return run_at_once(
        assign(
            *(assignor, members, TOPICS),
            lambda member: subscriptions[member.member_id],
            targets or {},
        )
    )


def count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def test_uniform_is_what_members_get_that_do_not_choose() -> None:
    assert list(ASSIGNORS) == [UNIFORM, RANGE]


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_every_partition_has_one_owner(assignor: str) -> None:
    found = shares(assignor, {"x": BOTH, "y": BOTH, "z": frozenset({"b"})})
    owned = [
        (topic_id, index)
        for assignment in found.values()
        for topic_id, indexes in assignment.items()
        for index in indexes
    ]
    assert sorted(owned) == [(topic_id, index) for topic_id in (A, B) for index in range(4)]
    assert A not in found["z"]


def test_range_gives_the_same_places_of_all_topics() -> None:
    found = shares(RANGE, {"x": BOTH, "y": BOTH})
    assert found == {
        "x": {A: frozenset({0, 1}), B: frozenset({0, 1})},
        "y": {A: frozenset({2, 3}), B: frozenset({2, 3})},
    }


def test_uniform_moves_no_more_than_it_must() -> None:
    before: dict[str, Assignment] = {
        "x": {A: frozenset({0, 2}), B: frozenset({1, 3})},
        "y": {A: frozenset({1, 3}), B: frozenset({0, 2})},
    }
    assert shares(UNIFORM, {"x": BOTH, "y": BOTH}, before) == before
    found = shares(UNIFORM, {"x": BOTH, "y": BOTH, "z": BOTH}, before)
    assert sorted(map(count, found.values())) == [2, 3, 3]
    for member in ("x", "y"):
        assert all(indexes <= before[member][topic] for topic, indexes in found[member].items())


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_topics_that_are_not_there_are_nobodys(assignor: str) -> None:
    gone: dict[str, Assignment] = {"x": {b"g" * 16: frozenset({0})}}
    assert shares(assignor, {"x": frozenset({"gone"}), "y": frozenset()}, gone) == {
        "x": {},
        "y": {},
    }
    assert count(shares(assignor, {"x": frozenset({"a", "gone"})}, gone)["x"]) == 4
