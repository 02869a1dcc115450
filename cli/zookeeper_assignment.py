"""Partition assignment of a ZooKeeper consumer group of Kafka 0.8.

Every member computes the same assignment from the same state of the znode tree; there is no group
leader. The strategies are those of `partition.assignment.strategy` of Kafka 0.8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.broker.coordination.ports import java_string_hash
from ottla.protocol.topics import TopicPartition

RANGE = "range"
ROUND_ROBIN = "roundrobin"

Threads = Mapping[str, Sequence[str]]
"""The ids of the threads that read each topic."""


class UnequalSubscriptions(ValueError):
    """Round-robin assigns all topics to all threads: every member has to subscribe to the same."""


def assign(
    strategy: str, threads: Threads, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """The owner thread of each partition, as every member of the group computes it."""
    if strategy == ROUND_ROBIN:
        return _round_robin(threads, partitions)
    return _range(threads, partitions)


def _range(threads: Threads, partitions: Mapping[str, Sequence[int]]) -> dict[TopicPartition, str]:
    """Topic by topic: each thread gets a range, the first ones one partition more."""
    owners = {}
    for topic, numbers in partitions.items():
        readers = sorted(threads.get(topic, ()))
        if not readers:
            continue
        each, more = divmod(len(numbers), len(readers))
        ordered = iter(sorted(numbers))
        for index, reader in enumerate(readers):
            for _ in range(each + (index < more)):
                owners[TopicPartition(topic, next(ordered))] = reader
    return owners


def _round_robin(
    threads: Threads, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """All partitions of all topics, in the order of their hashes, one to each thread in turn."""
    subscriptions = {tuple(sorted(readers)) for readers in threads.values()}
    if len(subscriptions) > 1:
        raise UnequalSubscriptions(
            "round-robin needs every member of the group to read the same topics with as many "
            "threads"
        )
    if not subscriptions:
        return {}
    (readers,) = subscriptions
    ordered = sorted(
        (TopicPartition(topic, n) for topic, numbers in partitions.items() for n in numbers),
        # The text of a partition in Kafka 0.8.
        key=lambda item: java_string_hash(f"[{item.topic},{item.partition}]"),
    )
    return {item: readers[index % len(readers)] for index, item in enumerate(ordered)}
