"""Znodes that coordinators use: the partitions of topics, and the offsets of old consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.controller.tree import znodes, znodes_admin
from ottla.controller.tree.store import NoNode, set_or_create

if TYPE_CHECKING:
    from ottla.controller.tree.store import ZnodeStore
    from ottla.protocol.topics import TopicPartition


async def existing_partitions(store: ZnodeStore, topic: str) -> frozenset[int]:
    """Return the partitions of a topic; none when it does not exist or is to be deleted.

    Raises StoreError when the tree cannot be read, MalformedZnode when the znode cannot be decoded.
    """
    if await store.exists(znodes.delete_topic_path(topic)) is not None:
        return frozenset()
    try:
        data, _ = await store.get(znodes.topic_path(topic))
    except NoNode:
        return frozenset()
    return frozenset(znodes.decode_topic(topic, data).assignments)


class ZnodeConsumerOffsets:
    """`/consumers/GROUP/offsets/TOPIC/PARTITION`."""

    def __init__(self, store: ZnodeStore) -> None:
        self._store = store

    async def get(self, group_id: str, partition: TopicPartition) -> int | None:
        """Return the committed offset, or None."""
        path = znodes.consumer_offset_path(group_id, partition.topic, partition.partition)
        try:
            data, _ = await self._store.get(path)
        except NoNode:
            return None
        return znodes_admin.decode_consumer_offset(path, data)

    async def set(self, group_id: str, partition: TopicPartition, offset: int) -> None:
        """Commit an offset; it is durable when this returns."""
        path = znodes.consumer_offset_path(group_id, partition.topic, partition.partition)
        await set_or_create(self._store, path, znodes_admin.encode_consumer_offset(offset))
