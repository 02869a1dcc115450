"""How far consumers can have read: the high watermarks of the partitions that this broker leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.topics import TopicPartition


def end_offset_reader(replicas: ReplicaManager) -> Callable[[TopicPartition], int | None]:
    """Reads the high watermark of a partition; None when this broker does not lead it."""

    def end_offset(partition: TopicPartition) -> int | None:
        found = replicas.partitions.get(partition)
        if found is None or not found.is_leader or found.log is None:
            return None
        return found.log.high_watermark

    return end_offset
