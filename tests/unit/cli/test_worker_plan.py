"""The plan of `ottla workers spread`: each topic first, then all of them, no second replica."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.worker_plan import TooManyReplicas, spread
from ottla.protocol.topics import TopicPartition


def topic(name: str, replicas: list[list[int]]) -> dict[TopicPartition, list[int]]:
    return {TopicPartition(name, number): each for number, each in enumerate(replicas)}


def after(
    current: dict[TopicPartition, list[int]], plan: dict[TopicPartition, list[int]]
) -> Counter[int]:
    return Counter(broker for replicas in (current | plan).values() for broker in replicas)


def test_each_topic_uses_all_workers() -> None:
    current = topic("a", [[1]] * 4) | topic("b", [[1]] * 3)
    plan = spread(current, [1, 2], [1, 2])
    for name, numbers in (("a", 4), ("b", 3)):
        leaders = Counter((current | plan)[TopicPartition(name, n)][0] for n in range(numbers))
        assert max(leaders.values()) - min(leaders.values()) <= 1
    assert sorted(after(current, plan).values()) == [3, 4]


def test_topics_of_one_partition_are_spread_together() -> None:
    current = {TopicPartition(f"t{n}", 0): [1] for n in range(10)}
    assert sorted(after(current, spread(current, [1, 2], [1, 2])).values()) == [5, 5]


def test_what_is_even_stays() -> None:
    current = topic("a", [[1], [2], [1], [2]])
    assert spread(current, [1, 2], [1, 2]) == {}


def test_replicas_elsewhere_stay() -> None:
    current = topic("a", [[1, 7], [7, 1], [1, 8], [8, 1]])
    plan = spread(current, [1, 2], [1, 2])
    for partition, replicas in plan.items():
        assert {7, 8}.intersection(replicas) == {7, 8}.intersection(current[partition])
    assert after(current, plan)[2] == 2


def test_a_leader_changes_place_with_a_follower_of_the_machine() -> None:
    current = topic("a", [[1, 2], [1, 2]])
    plan = spread(current, [1, 2], [1, 2])
    assert list(plan.values()) == [[2, 1]]


def test_workers_that_leave_have_no_replicas() -> None:
    current = topic("a", [[1], [2], [3, 9]])
    plan = spread(current, [1, 2, 3], [1])
    assert plan == {TopicPartition("a", 1): [1], TopicPartition("a", 2): [1, 9]}


def test_two_replicas_do_not_fit_on_one_worker() -> None:
    with pytest.raises(TooManyReplicas, match="a-0 has 2 replicas on this machine, and 1 worker"):
        spread(topic("a", [[1, 2]]), [1, 2], [1])


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9)),
        st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
        max_size=25,
    )
)
def test_a_plan_is_complete(current: dict[TopicPartition, list[int]]) -> None:
    """Brokers 1 to 3 are workers of the machine. A second plan finds nothing to do."""
    machine = [1, 2, 3]
    plan = spread(current, machine, machine)
    result = current | plan
    for partition, replicas in result.items():
        assert len(set(replicas)) == len(replicas) == len(current[partition])
        others = {4, 5, 6}
        assert others.intersection(replicas) == others.intersection(current[partition])
    assert spread(result, machine, machine) == {}
    for name in "abc":
        leaders = Counter(dict.fromkeys(machine, 0))
        for partition, replicas in result.items():
            if partition.topic == name and replicas[0] in machine:
                leaders[replicas[0]] += 1
        assert max(leaders.values()) - min(leaders.values()) <= 1
