"""Two znodes that only Ottla's controllers write; Kafka's ignore them.

**Deleted topics.** Kafka starts each topic with leader epoch 0. If a topic is deleted and created
again, clients see a lower leader epoch and may ignore the metadata of the new topic as stale. So a
topic starts above the highest leader epoch of a deleted topic of its name. The epochs of the last
thousand names are stored; for older names there is a floor, the highest of their epochs. The ids of
the last topics of these names are stored as well. A broker with a log of such an id knows that the
topic was deleted, even if it missed the StopReplica. Otherwise it would only see that the topic is
not in the tree, which also holds for a tree that was restored from an older copy.

**Processed registrations.** A controller that has not heard of a broker's restart can still write
an ISR with that broker, as it was a member before. If the controller fails then, its successor sees
an ISR that is newer than the registration and cannot know that the broker may have lost records. So
a controller stores the registrations that its elections have taken into account. A broker that was
not a member must not become one that way: there may be no other live member, and it may be empty.
So a write that adds members fails after a registration that is not in the context.
"""

import logging
from collections.abc import Mapping

from ottla.controller.model import BrokerInfo
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, NoNode, Op, SetOp, ZnodeStore
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import (
    decode_deleted_topic_ids,
    decode_deleted_topics,
    decode_processed_brokers,
    encode_deleted_topics,
    encode_processed_brokers,
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
        """Add a topic; return the operations for the multi that deletes its znodes.

        `by_controller` is False for a topic whose znode something else has removed.
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
        """Create the parent znode, before the first `record` in a cluster."""
        if not self._exists:
            parent = znodes.DELETED_TOPICS.rpartition("/")[0]
            if await store.exists(parent) is None:
                await store.create(parent)

    def recorded(self) -> None:
        """The multi with the operations of `record` succeeded."""
        self._exists = True


class ProcessedBrokers:
    """Broker epochs by broker id. Not in Kafka, whose controllers ignore the znode."""

    def __init__(self, writer: FencedWriter) -> None:
        self._writer = writer

    async def load(self) -> Mapping[int, int] | None:
        """Read what earlier controllers have processed; None if that is not known."""
        try:
            data, _ = await self._writer.store.get(znodes.PROCESSED_BROKERS)
            return decode_processed_brokers(data)
        except NoNode:
            return None  # the first controller, or all others were Kafka's
        except MalformedZnode as error:
            logger.error("Ignoring the processed registrations of brokers: %s", error)
            return None

    async def read_version(self) -> int:
        """The version of `znodes.REGISTRATIONS`; to be read before the brokers are."""
        stat = await self._writer.store.exists(znodes.REGISTRATIONS)
        return -1 if stat is None else stat.version

    def set_version(self, version: int) -> None:
        """The context has the registrations up to this version: replicas may join ISRs."""
        self._writer.registrations_version = version

    async def save(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Store that these registrations are processed: the ISRs have no earlier ones."""
        epochs = {broker_id: broker.epoch for broker_id, broker in brokers.items()}
        await self._writer.set_or_create(znodes.PROCESSED_BROKERS, encode_processed_brokers(epochs))
