"""The highest leader epochs of deleted topics, in a znode.

Kafka starts each topic with leader epoch 0. If a topic is deleted and created again, clients see a
lower leader epoch and may ignore the metadata of the new topic as stale. So a topic starts above
the highest leader epoch that a deleted topic of its name had. The epochs of the last thousand names
are stored; for all older ones there is a floor, the highest of their epochs.

The ids of the last topics of these names are stored, too. A broker with a log of such an id knows
that the topic was deleted, also if it missed the StopReplica: without this it sees only that the
topic is not in the tree, which is true for a tree that was restored from an older copy as well.
"""

import logging

from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, NoNode, Op, SetOp, ZnodeStore
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import (
    decode_deleted_topic_ids,
    decode_deleted_topics,
    encode_deleted_topics,
)
from ottla.protocol.uuids import uuid_to_string

logger = logging.getLogger("ottla.controller")

MAX_NAMES = 1000
"""A thousand names of the maximum length are 270 KB, a quarter of the limit of a znode. They are in
it up to three times, if all of them have ids: then fewer names are kept."""
MAX_IDS = 3
"""The last ids of a name: a broker may be down while a topic is deleted more than once."""
MAX_BYTES = 512 * 1024
"""Half of what ZooKeeper accepts: the multi that deletes the topic has other operations."""


class DeletedTopics:
    """The znode's state; it changes with the multi that deletes a topic."""

    def __init__(self) -> None:
        self._floor = -1
        self._epochs: dict[str, int] = {}
        self._deleted_ids: dict[str, tuple[str, ...]] = {}
        self._removed_ids: dict[str, tuple[str, ...]] = {}
        self._exists = False

    async def load(self, store: ZnodeStore) -> None:
        try:
            data, _ = await store.get(znodes.DELETED_TOPICS)
        except NoNode:
            self._floor, self._epochs, self._exists = -1, {}, False
            self._deleted_ids, self._removed_ids = {}, {}
            return
        self._exists = True
        try:
            self._floor, self._epochs = decode_deleted_topics(data)
            self._deleted_ids, self._removed_ids = decode_deleted_topic_ids(data)
        except MalformedZnode as error:  # the next deletion replaces it
            logger.error("Ignoring the leader epochs of deleted topics: %s", error)
            self._floor, self._epochs = -1, {}
            self._deleted_ids, self._removed_ids = {}, {}

    def first_epoch(self, topic: str) -> int:
        """The first leader epoch of a new partition of the topic."""
        return max(self._epochs.get(topic, -1), self._floor) + 1

    def record(
        self,
        topic: str,
        highest_epoch: int,
        topic_id: bytes | None = None,
        *,
        by_controller: bool = True,
    ) -> list[Op]:
        """Adds a topic; returns the operations for the multi that deletes its znodes.

        ``by_controller`` is False for a topic whose znode something else has removed.
        """
        highest_epoch = max(highest_epoch, self._epochs.pop(topic, -1))
        self._epochs[topic] = highest_epoch
        if topic_id is not None:
            ids = self._deleted_ids if by_controller else self._removed_ids
            before = [each for each in ids.get(topic, ()) if each != uuid_to_string(topic_id)]
            ids[topic] = (*before, uuid_to_string(topic_id))[-MAX_IDS:]
        while len(self._epochs) > MAX_NAMES:
            self._forget_oldest()
        payload = self._payload()
        while len(payload) > MAX_BYTES and len(self._epochs) > 1:
            for _ in range(max(1, len(self._epochs) // 8)):
                self._forget_oldest()
            payload = self._payload()
        if self._exists:
            return [SetOp(znodes.DELETED_TOPICS, payload)]
        return [CreateOp(znodes.DELETED_TOPICS, payload)]

    def _payload(self) -> bytes:
        return encode_deleted_topics(
            self._floor, self._epochs, self._deleted_ids, self._removed_ids
        )

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._epochs))
        self._floor = max(self._floor, self._epochs.pop(oldest))
        self._deleted_ids.pop(oldest, None)
        self._removed_ids.pop(oldest, None)

    async def prepare(self, store: ZnodeStore) -> None:
        """Creates the parent znode, before the first ``record`` in a cluster."""
        if not self._exists:
            parent = znodes.DELETED_TOPICS.rpartition("/")[0]
            if await store.exists(parent) is None:
                await store.create(parent)

    def recorded(self) -> None:
        """The multi with the operations of ``record`` succeeded."""
        self._exists = True
