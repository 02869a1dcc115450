"""Groups the rows of a response by topic, as most responses of Kafka require."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache

Row = TypeVar("Row")
Value = TypeVar("Value")


class TopicRows(Generic[Row]):
    """Collects (partition index, row) pairs by topic, in insertion order."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, list[tuple[int, Row]]] = {}

    def add(self, partition: TopicPartition, row: Row) -> None:
        self._topics.setdefault(partition.topic, []).append((partition.partition, row))

    def items(self) -> ItemsView[str, list[tuple[int, Row]]]:
        return self._topics.items()


def split_known(
    metadata: MetadataCache,
    partitions: Iterable[tuple[TopicPartition, Value]],
    unknown: TopicRows[int],
) -> dict[TopicPartition, Value]:
    """Return the partitions that exist; the others get UNKNOWN_TOPIC_OR_PARTITION in `unknown`.

    The last value of a duplicate partition is used.
    """
    snapshot = metadata.snapshot
    known: dict[TopicPartition, Value] = {}
    for partition, value in partitions:
        if snapshot.partition(partition.topic, partition.partition) is None:
            unknown.add(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            known[partition] = value
    return known
