"""What every assignor promises; that they decide as Kafka's do is shown by the golden vectors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.assignors import (
    ASSIGNORS,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky_eager,
)
from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.steps import run_at_once
from ottla.protocol.sticky_assignment import encode_sticky_state
from ottla.protocol.topics import TopicPartition

topics = st.sampled_from(["a", "b", "c", "d"])
counts_by_topic = st.dictionaries(topics, st.integers(0, 9), max_size=4)
groups = st.dictionaries(
    st.text("xyz0123456789", min_size=1, max_size=6),
    st.lists(topics, unique=True, max_size=4),
    max_size=7,
)


def parts(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ASSIGNORS)), counts_by_topic, groups)
def test_every_wanted_partition_goes_to_exactly_one_that_wants_it(
    name: str, counts: dict[str, int], wanted: dict[str, list[str]]
) -> None:
    subscriptions = {member: Subscription(found) for member, found in wanted.items()}
    result = run_at_once(ASSIGNORS[name](counts, subscriptions))
    assert result.keys() == wanted.keys()
    given_away = [partition for partitions in result.values() for partition in partitions]
    assert len(given_away) == len(set(given_away))
    assert set(given_away) == {
        TopicPartition(topic, number)
        for topic, count in counts.items()
        for number in range(count)
        if any(topic in found for found in wanted.values())
    }
    for member, partitions in result.items():
        assert {partition.topic for partition in partitions} <= set(wanted[member])


def test_range_gives_neighbours_and_the_rest_to_the_first() -> None:
    members = {member: Subscription(["t", "u"]) for member in ("m2", "m1", "m3")}
    assert run_at_once(assign_range({"t": 7, "u": 2}, members)) == {
        "m1": parts("t", 0, 1, 2) + parts("u", 0),
        "m2": parts("t", 3, 4) + parts("u", 1),
        "m3": parts("t", 5, 6),
    }


def test_instance_ids_decide_the_order_and_come_first() -> None:
    members = {
        "a": Subscription(["t"]),
        "b": Subscription(["t"], group_instance_id="z"),
        "c": Subscription(["t"], group_instance_id="y"),
    }
    for assign in (assign_range, assign_round_robin):
        assert run_at_once(assign({"t": 3}, members)) == {
            "c": parts("t", 0),
            "b": parts("t", 1),
            "a": parts("t", 2),
        }


def test_round_robin_skips_those_who_do_not_want_it() -> None:
    members = {"a": Subscription(["t"]), "b": Subscription(["t", "u"]), "c": Subscription(["u"])}
    assert run_at_once(assign_round_robin({"t": 3, "u": 2}, members)) == {
        "a": parts("t", 0, 2),
        "b": parts("t", 1) + parts("u", 0),
        "c": parts("u", 1),
    }


def had(*owned: TopicPartition, generation: int = 1) -> Subscription:
    return Subscription(["t"], encode_sticky_state(list(owned), generation))


def test_sticky_members_keep_what_they_had() -> None:
    members = {"a": had(*parts("t", 0, 1, 2)), "b": had(*parts("t", 3, 4, 5)), "c": had()}
    result = run_at_once(assign_sticky_eager({"t": 6}, members))
    assert result == {"a": parts("t", 0, 1), "b": parts("t", 3, 4), "c": parts("t", 2, 5)}


def test_of_two_claims_the_later_generation_wins() -> None:
    members = {
        "a": had(*parts("t", 0, 1), generation=3)._replace(generation_id=3),
        "b": had(*parts("t", 0, 1), generation=4)._replace(generation_id=4),
    }
    assert run_at_once(assign_sticky_eager({"t": 4}, members))["b"] == parts("t", 0, 1)


def test_partitions_that_are_gone_are_forgotten() -> None:
    members = {"a": had(*parts("t", 0, 8), *parts("gone", 1)), "b": had()}
    assert run_at_once(assign_sticky_eager({"t": 2}, members)) == {
        "a": parts("t", 0),
        "b": parts("t", 1),
    }


def owns(*owned: TopicPartition, wanted: tuple[str, ...] = ("t",)) -> Subscription:
    return Subscription(list(wanted), None, list(owned), 5)


def test_cooperative_holds_back_what_changes_hands() -> None:
    members = {"a": owns(*parts("t", 0, 1, 2, 3)), "b": owns()}
    first = run_at_once(assign_cooperative_sticky({"t": 4}, members))
    assert first == {"a": parts("t", 0, 1), "b": []}
    second = run_at_once(assign_cooperative_sticky({"t": 4}, {"a": owns(*first["a"]), "b": owns()}))
    assert second == {"a": parts("t", 0, 1), "b": parts("t", 2, 3)}


def test_cooperative_holds_back_in_the_general_case_too() -> None:
    members = {
        "a": owns(*parts("t", 0, 1, 2, 3), wanted=("t", "u")),
        "b": owns(wanted=("t",)),
    }
    first = run_at_once(assign_cooperative_sticky({"t": 4, "u": 1}, members))
    held_back = set(parts("t", 0, 1, 2, 3)) - {found for mine in first.values() for found in mine}
    assert held_back
    assert first["b"] == []


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_no_members_and_no_topics(name: str) -> None:
    assert run_at_once(ASSIGNORS[name]({}, {})) == {}
    assert run_at_once(ASSIGNORS[name]({"t": 3}, {})) == {}
    two = {"a": Subscription(["t"]), "b": Subscription([])}
    assert run_at_once(ASSIGNORS[name]({}, two)) == {"a": [], "b": []}
