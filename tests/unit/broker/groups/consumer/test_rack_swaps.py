"""Partitions go to members in the racks of their replicas, and the balance stays."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from ottla.broker.groups.consumer.cluster_topics import TopicDescription
from ottla.broker.groups.consumer.member import Assignment, ConsumerMember
from ottla.broker.groups.consumer.rack_swaps import Shares, prefer_racks
from ottla.broker.groups.consumer.server_assignors import RANGE, UNIFORM, assign
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition

TOPIC_ID = b"t" * 16


def topic(*racks: str, name: str = "t") -> TopicDescription:
    """One partition for each word, with the racks of its letters; "-" for unknown ones."""
    known = {index: frozenset(word) for index, word in enumerate(racks) if word != "-"}
    return TopicDescription(TOPIC_ID, name, len(racks), known)


def near(shares: Shares, racks: dict[str, str | None], found: TopicDescription) -> int:
    return sum(
        racks[member] is None or racks[member] in found.racks.get(each.partition, {racks[member]})
        for member, partitions in shares.items()
        for each in partitions
    )


def assigned(
    assignor: str,
    members: list[ConsumerMember],
    found: TopicDescription,
    before: dict[str, Assignment],
) -> dict[str, Assignment]:
    return run_at_once(
        assign(assignor, members, {"t": found}, lambda member: frozenset({"t"}), before)
    )


def test_each_member_reads_from_its_rack() -> None:
    members = [ConsumerMember(f"m{rack}", rack_id=rack) for rack in "xyz"]
    found = topic("z", "z", "y", "y", "x", "x")
    first = assigned(UNIFORM, members, found, {})
    assert {name: set(each[TOPIC_ID]) for name, each in first.items()} == {
        "mx": {4, 5},
        "my": {2, 3},
        "mz": {0, 1},
    }
    assert assigned(UNIFORM, members, found, first) == first, "nothing moves again"


def test_a_new_member_gets_partitions_of_its_rack() -> None:
    members = [ConsumerMember("mx", rack_id="x")]
    found = topic("x", "y", "x", "y")
    first = assigned(UNIFORM, members, found, {})
    both = [*members, ConsumerMember("my", rack_id="y")]
    then = assigned(UNIFORM, both, found, first)
    assert {name: set(each[TOPIC_ID]) for name, each in then.items()} == {
        "mx": {0, 2},
        "my": {1, 3},
    }


def test_without_racks_nothing_changes() -> None:
    shares: Shares = {"a": [TopicPartition("t", 0)], "b": [TopicPartition("t", 1)]}
    for racks in ({"a": None, "b": None}, {"a": "x", "b": "x"}):
        assert run_at_once(prefer_racks(shares, {"t": topic("y", "x")}, racks)) == shares
    no_racks = run_at_once(prefer_racks(shares, {"t": topic("-", "-")}, {"a": "x", "b": "y"}))
    assert no_racks == shares


def test_range_stays_as_it_is() -> None:
    members = [ConsumerMember("a", rack_id="x"), ConsumerMember("b", rack_id="y")]
    found = assigned(RANGE, members, topic("y", "y", "x", "x"), {})
    assert found["a"] == {TOPIC_ID: frozenset({0, 1})}


@pytest.mark.parametrize("seed", range(100))
def test_any_assignment_gets_no_worse_and_keeps_its_balance(seed: int) -> None:
    chance = random.Random(seed)
    count, letters = chance.randint(1, 12), "wxyz"[: chance.randint(2, 4)]
    words = ("".join(chance.sample(letters, chance.randint(1, 2))) for _ in range(count))
    found = topic(*(word if chance.random() < 0.9 else "-" for word in words))
    racks = {f"m{each}": chance.choice([*letters, None]) for each in range(chance.randint(1, 6))}
    shares: Shares = {member: [] for member in racks}
    for index in range(count):
        shares[chance.choice(list(racks))].append(TopicPartition("t", index))
    after = run_at_once(prefer_racks(shares, {"t": found}, racks))
    assert {each: len(row) for each, row in after.items()} == {
        each: len(row) for each, row in shares.items()
    }
    assert sorted(chain(*after.values())) == sorted(chain(*shares.values()))
    assert near(after, racks, found) >= near(shares, racks, found)
    again = run_at_once(prefer_racks(after, {"t": found}, racks))
    assert again == after
