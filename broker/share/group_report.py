"""Reports on share groups: their state on this broker, and the end offsets for their lag.

A broker reports only the partitions that it leads; the console adds up the reports of all brokers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.broker.share.metrics import ACKNOWLEDGE_TYPES
from ottla.broker.share.persister import RecordState
from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.share.share_partition import SharePartition
    from ottla.broker.share.share_partitions import HostedPartition, SharePartitions
    from ottla.protocol.message import Message
    from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.share")

# The text is one value of a DescribeConfigs response, with some 150 bytes for a partition.
MAX_PARTITIONS = 1000


def report(partitions: SharePartitions, group_id: str, now_ms: int) -> str:
    """JSON: `partitions`, the first MAX_PARTITIONS in order, and `counts` since this broker
    started, None if it has not delivered a record of the group."""
    rows = sorted(partitions.of_group(group_id), key=lambda hosted: hosted.partition.key)
    lock_ms = partitions.settings.limits(group_id).lock_duration_ms
    counts = partitions.statistics.groups.get(group_id)
    return json.dumps(
        {
            "partitions": [_row(each, lock_ms, now_ms) for each in rows[:MAX_PARTITIONS]],
            "counts": counts
            and {
                "delivered": counts.delivered,
                "redelivered": counts.redelivered,
                "expired_locks": counts.expired_locks,
                "acknowledged": {
                    name: counts.acknowledged[kind] for kind, name in ACKNOWLEDGE_TYPES.items()
                },
            },
        }
    )


def _row(hosted: HostedPartition, lock_ms: int, now_ms: int) -> dict[str, Any]:
    topic, index = hosted.partition.key
    row: dict[str, Any] = {"topic": topic, "partition": index, "leader_epoch": hosted.leader_epoch}
    if hosted.state is not None:
        row |= _in_flight(hosted.state, lock_ms, now_ms)
    return row


def _in_flight(state: SharePartition, lock_ms: int, now_ms: int) -> dict[str, Any]:
    """`oldest_lock_ms` is the time since the records that are locked longest were acquired, or
    their lock was renewed."""
    acquired = [each for each in state.window.batches if each.state == RecordState.ACQUIRED]
    deadline_ms = state.next_deadline_ms()
    return {
        "start_offset": state.window.start_offset,
        "end_offset": state.window.end_offset,
        "in_flight": state.window.in_flight_records,
        "locked": sum(each.count for each in acquired),
        "members": len({each.member_id for each in acquired}),
        "oldest_lock_ms": (None if deadline_ms is None else max(0, now_ms + lock_ms - deadline_ms)),
        "most_deliveries": max(
            (each.delivery_count for each in state.window.batches if not each.is_terminal),
            default=0,
        ),
    }


_LATEST = -1  # the timestamp that stands for the end of the log
_CONSUMER = -1

Send = Callable[[int, "Message"], Awaitable["Message"]]
"""Sends a request to a broker; raises after a deadline, and when the broker cannot be reached."""


class LatestOffsets:
    """Reads the local log or sends ListOffsets to the leader."""

    def __init__(
        self, broker_id: int, metadata: MetadataCache, replica_manager: ReplicaManager, send: Send
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._send = send

    async def find(self, where: TopicPartition) -> int | None:
        """Return the high watermark; None if the leader is missing or unreachable."""
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
