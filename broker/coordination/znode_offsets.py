"""Committed offsets in ZooKeeper, for the old consumer (version 0 of OffsetCommit, OffsetFetch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.controller.tree import znodes, znodes_admin
from ottla.controller.tree.store import NoNode, ZnodeStore, set_or_create

if TYPE_CHECKING:
    from ottla.protocol.topics import TopicPartition


class ZnodeConsumerOffsets:
    """`/consumers/GROUP/offsets/TOPIC/PARTITION`."""

    def __init__(self, store: ZnodeStore) -> None:
        self._store = store

    async def get(self, group_id: str, partition: TopicPartition) -> int | None:
        """The committed offset, or None."""
        path = znodes.consumer_offset_path(group_id, partition.topic, partition.partition)
        try:
            data, _ = await self._store.get(path)
        except NoNode:
            return None
        return znodes_admin.decode_consumer_offset(path, data)

    async def set(self, group_id: str, partition: TopicPartition, offset: int) -> None:
        """Commits an offset; it is durable when this returns."""
        path = znodes.consumer_offset_path(group_id, partition.topic, partition.partition)
        await set_or_create(self._store, path, znodes_admin.encode_consumer_offset(offset))
