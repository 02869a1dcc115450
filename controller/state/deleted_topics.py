"""Remembers how high the leader epochs of deleted topics were.

Kafka starts every topic with leader epoch 0. A client that knew a topic before it was deleted and
made again then sees the epoch fall and may take the new topic for old news. So a topic of a name
that was deleted starts above the highest epoch it ever had. The newest thousand names are kept
with their epochs; for all older ones one floor is kept that none of them exceeded.
"""

from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, NoNode, Op, SetOp, ZnodeStore
from ottla.controller.tree.znodes_admin import decode_deleted_topics, encode_deleted_topics

MAX_NAMES = 1000
"""A thousand names of the longest kind are 270 KB, a quarter of what a znode can hold."""


class DeletedTopics:
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
        self._floor, self._epochs = decode_deleted_topics(data)
        self._exists = True

    def first_epoch(self, topic: str) -> int:
        """The leader epoch with which a new partition of the topic begins."""
        return max(self._epochs.get(topic, -1), self._floor) + 1

    def record(self, topic: str, highest_epoch: int) -> list[Op]:
        """The writes that belong into the multi that deletes the topic."""
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
        """Makes the parent node, before the first ``remember`` of a cluster's life."""
        if not self._exists:
            parent = znodes.DELETED_TOPICS.rpartition("/")[0]
            if await store.exists(parent) is None:
                await store.create(parent)

    def recorded(self) -> None:
        """The multi with the operations of ``remember`` succeeded."""
        self._exists = True
