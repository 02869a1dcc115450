"""The high watermarks of partitions, whichever broker leads them: for the lag of share groups."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataSnapshot
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.message import Message
    from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.share")

_LATEST = -1  # the timestamp that stands for the end of the log
_CONSUMER = -1

Send = Callable[[int, "Message"], Awaitable["Message"]]
"""Sends a request to a broker; raises after a deadline, and when the broker cannot be reached."""


class Metadata(Protocol):
    """The metadata cache, as far as it is used here."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...


class LatestOffsets:
    """Reads the local log or sends ListOffsets to the leader."""

    def __init__(
        self, broker_id: int, metadata: Metadata, replica_manager: ReplicaManager, send: Send
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._send = send

    async def find(self, where: TopicPartition) -> int | None:
        """The high watermark; None if the partition has no leader or that cannot be reached."""
        snapshot = self._metadata.snapshot
        found = snapshot.partition(*where)
        if found is None or found.leader not in snapshot.brokers:
            return None
        if found.leader == self._broker_id:
            try:
                return self._replica_manager.partition(*where).leader_log().high_watermark
            except KafkaError:
                return None  # the leadership has just moved
        row = ListOffsetsPartition(where.partition, timestamp=_LATEST)
        request = ListOffsetsRequest(_CONSUMER, topics=[ListOffsetsTopic(where.topic, [row])])
        try:
            response = await self._send(found.leader, request)
        except (ClientError, OSError) as problem:
            logger.info("The end offset of %s-%d is not known: %s", *where, problem)
            return None
        assert isinstance(response, ListOffsetsResponse)
        for topic in response.topics:
            for result in topic.partitions:
                if result.error_code == ErrorCode.NONE:
                    return result.offset
        return None
