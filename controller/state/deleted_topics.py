"""The highest leader epochs of deleted topics, in a znode.

Kafka starts each topic with leader epoch 0. If a topic is deleted and created again, clients see a
lower leader epoch and may ignore the metadata of the new topic as stale. So a topic starts above
the highest leader epoch that a deleted topic of its name had. The epochs of the last thousand names
are stored; for all older ones there is a floor, the highest of their epochs.
"""

import logging

from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, NoNode, Op, SetOp, ZnodeStore
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_deleted_topics, encode_deleted_topics

logger = logging.getLogger("ottla.controller")

MAX_NAMES = 1000
"""A thousand names of the maximum length are 270 KB, a quarter of the limit of a znode."""


class DeletedTopics:
    """The znode's state; it changes with the multi that deletes a topic."""

    def __init__(self) -> None:
        self._floor = -1
        self._epochs: dict[str, int] = {}
        self._exists = False

    async def load(self, store: ZnodeStore) -> None:
        try:
            data, _ = await store.get(znodes.DELETED_TOPICS)
        except NoNode:
            self._floor, self._epochs, self._exists = -1, {}, False
            return
        self._exists = True
        try:
            self._floor, self._epochs = decode_deleted_topics(data)
        except MalformedZnode as error:  # the next deletion replaces it
            logger.error("Ignoring the leader epochs of deleted topics: %s", error)
            self._floor, self._epochs = -1, {}

    def first_epoch(self, topic: str) -> int:
        """The first leader epoch of a new partition of the topic."""
        return max(self._epochs.get(topic, -1), self._floor) + 1

    def record(self, topic: str, highest_epoch: int) -> list[Op]:
        """Adds a topic; returns the operations for the multi that deletes its znodes."""
        highest_epoch = max(highest_epoch, self._epochs.pop(topic, -1))
        self._epochs[topic] = highest_epoch
        while len(self._epochs) > MAX_NAMES:
            oldest = next(iter(self._epochs))
            self._floor = max(self._floor, self._epochs.pop(oldest))
        payload = encode_deleted_topics(self._floor, self._epochs)
        if self._exists:
            return [SetOp(znodes.DELETED_TOPICS, payload)]
        return [CreateOp(znodes.DELETED_TOPICS, payload)]

    async def prepare(self, store: ZnodeStore) -> None:
        """Creates the parent znode, before the first ``record`` in a cluster."""
        if not self._exists:
            parent = znodes.DELETED_TOPICS.rpartition("/")[0]
            if await store.exists(parent) is None:
                await store.create(parent)

    def recorded(self) -> None:
        """The multi with the operations of ``record`` succeeded."""
        self._exists = True
