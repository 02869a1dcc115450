"""How the members of a ZooKeeper consumer group of Kafka 0.8 share partitions.

Every member computes the same sharing from the same picture of the tree; there is no leader. Both
ways are those of Kafka's `partition.assignment.strategy` of that time.
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
    """Round-robin shares all topics among all threads: every member has to read the same ones."""


def assign(
    strategy: str, threads: Threads, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, str]:
    """Who owns which partition, as every member of the group computes it."""
    if strategy == ROUND_ROBIN:
        return _round_robin(threads, partitions)
    return _range(threads, partitions)


def _range(threads: Threads, partitions: Mapping[str, Sequence[int]]) -> dict[TopicPartition, str]:
    """Topic by topic: each thread gets a stretch, the first ones one partition more."""
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
    """All partitions of all topics, in the order of their hashes, dealt out like cards."""
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
        # As Kafka printed a partition in those days.
        key=lambda item: java_string_hash(f"[{item.topic},{item.partition}]"),
    )
    return {item: readers[index % len(readers)] for index, item in enumerate(ordered)}
