"""The registrations of brokers that a controller has processed, in a znode.

A controller that has not yet heard of a restart can still write an ISR with the broker that
restarted: it was a member before. If that controller fails then, its successor sees an ISR that is
newer than the registration and cannot know that the broker may have lost records. So a controller
stores which registrations its elections have taken into account.

A broker that was no member before must not become one so: there may be no other live member, and
it may be empty. So a write that adds members fails after a registration that is not in the context.
"""

import logging
from collections.abc import Mapping

from ottla.controller.model import BrokerInfo
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_processed_brokers, encode_processed_brokers

logger = logging.getLogger("ottla.controller")


class ProcessedBrokers:
    """Broker epochs by broker id. Not in Kafka, whose controllers ignore the znode."""

    def __init__(self, writer: FencedWriter) -> None:
        self._writer = writer

    async def load(self) -> Mapping[int, int] | None:
        """What earlier controllers have processed; None if that is not known."""
        try:
            data, _ = await self._writer.store.get(znodes.PROCESSED_BROKERS)
            return decode_processed_brokers(data)
        except NoNode:
            return None  # the first controller, or all others were Kafka's
        except MalformedZnode as error:
            logger.error("Ignoring the processed registrations of brokers: %s", error)
            return None

    async def read_version(self) -> int:
        """The version of ``znodes.REGISTRATIONS``; to be read before the brokers are."""
        stat = await self._writer.store.exists(znodes.REGISTRATIONS)
        return -1 if stat is None else stat.version

    def set_version(self, version: int) -> None:
        """The context has the registrations up to this version: replicas may join ISRs."""
        self._writer.registrations_version = version

    async def save(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Stores that these registrations are processed: the ISRs have no earlier ones."""
        epochs = {broker_id: broker.epoch for broker_id, broker in brokers.items()}
        await self._writer.set_or_create(znodes.PROCESSED_BROKERS, encode_processed_brokers(epochs))
