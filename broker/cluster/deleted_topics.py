"""Topics of the metadata cache that were deleted without notice to this broker.

The controller sends differences. A broker without a replica of a topic misses its deletion when it
has no session with ZooKeeper at that time, or when the controller dies with the UpdateMetadata in
its queue: a deletion waits for the brokers with replicas only. (In Kafka such a topic stays in the
metadata until the broker restarts, and clients see it.) So after each registration and each change
of the controller the topics are compared with the znode tree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError
from ottla.protocol.listed import listed

if TYPE_CHECKING:
    from ottla.broker.cluster.broker_epoch import BrokerEpoch
    from ottla.broker.cluster.metadata_cache import MetadataCache, TopicMetadata
    from ottla.controller.tree.store import ZnodeStore

logger = logging.getLogger("ottla.broker")

Topics = dict[str, "TopicMetadata"]


class DeletedTopicCheck:
    """Loop only."""

    def __init__(
        self,
        metadata: MetadataCache,
        store: ZnodeStore,
        broker_epoch: BrokerEpoch,
        remove: Callable[[Topics], Awaitable[None]],
    ) -> None:
        """`remove` takes topics out of the metadata cache, if they are still the same."""
        self._metadata = metadata
        self._store = store
        self._broker_epoch = broker_epoch
        self._remove = remove
        self._compared = (-1, -1)
        # What the cache had at the last call, which was the first with these epochs.
        self._before: tuple[tuple[int, int], Topics] = ((-1, -1), {})

    async def look(self) -> None:
        """To be called every 15 seconds or so.

        Topics that were in the cache at the call before are compared: the server of ZooKeeper that
        responds may be behind by some seconds, and have not heard of the newest.
        """
        snapshot = self._metadata.snapshot
        epochs = (self._broker_epoch.value, snapshot.controller_epoch)
        if epochs == self._compared:
            return
        noted_for, topics = self._before
        if epochs != noted_for:
            self._before = (epochs, snapshot.topics)
            return
        try:
            existing = set(await self._store.children(znodes.TOPICS))
        except StoreError as error:
            logger.info("Failed to look for deleted topics, retrying: %s", error)
            return
        gone = {name: topic for name, topic in topics.items() if name not in existing}
        if gone:
            logger.info("Removing deleted topics from the metadata: %s", listed(gone))
            await self._remove(gone)
        self._compared, self._before = epochs, ((-1, -1), {})
