"""Which partitions a topic has by the znode tree, whatever the metadata cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode

if TYPE_CHECKING:
    from ottla.controller.tree.store import ZnodeStore


async def existing_partitions(store: ZnodeStore, topic: str) -> frozenset[int]:
    """The partitions of a topic; none when it does not exist or is to be deleted.

    Raises StoreError when the tree cannot be read, MalformedZnode when the znode cannot be decoded.
    """
    if await store.exists(znodes.delete_topic_path(topic)) is not None:
        return frozenset()
    try:
        data, _ = await store.get(znodes.topic_path(topic))
    except NoNode:
        return frozenset()
    return frozenset(znodes.decode_topic(topic, data).assignments)
