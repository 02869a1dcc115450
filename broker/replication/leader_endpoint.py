"""Questions of a follower about the leader's log, besides Fetch. Mirrors Kafka's LeaderEndPoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ottla.protocol.client.aio_connection import AsyncConnection
    from ottla.protocol.message import Message
    from ottla.protocol.topics import TopicPartition

LATEST = -1
EARLIEST = -2
EARLIEST_LOCAL = -4

_LIST_OFFSETS, _NEWEST_LIST_OFFSETS = 2, 9
_EARLIEST_LOCAL_SINCE = 8
_EPOCHS, _NEWEST_EPOCHS = 23, 4


class LeaderUnreachable(Exception):
    """A request got no response: an error of the connection, not of a partition."""


class LeaderEndpoint:
    """One leader. Requests have a deadline; errors of a partition are raised as KafkaError."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], broker_id: int, timeout_ms: int
    ) -> None:
        """`broker_id` is that of this follower."""
        self._connect = connect
        self._broker_id = broker_id
        self._timeout_ms = timeout_ms

    async def offset(
        self, key: TopicPartition, leader_epoch: int, timestamp: int
    ) -> tuple[int, int]:
        """(offset, its leader epoch or -1) for one of the special timestamps."""
        connection = await self._connection()
        version = min(_NEWEST_LIST_OFFSETS, connection.versions[_LIST_OFFSETS][1])
        if timestamp == EARLIEST_LOCAL and version < _EARLIEST_LOCAL_SINCE:
            timestamp = EARLIEST  # such a leader has no remote storage
        row = ListOffsetsPartition(key.partition, timestamp=timestamp)
        if version >= 4:
            row.current_leader_epoch = leader_epoch
        request = ListOffsetsRequest(
            replica_id=self._broker_id, topics=[ListOffsetsTopic(key.topic, [row])]
        )
        response = cast("ListOffsetsResponse", await self._request(connection, request, version))
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(found.error_code)
        return found.offset, found.leader_epoch

    async def end_offset_for_epoch(
        self, key: TopicPartition, leader_epoch: int, epoch: int
    ) -> tuple[int, int]:
        """(largest epoch up to `epoch`, its end offset); (-1, -1) if the leader has none."""
        connection = await self._connection()
        version = min(_NEWEST_EPOCHS, connection.versions[_EPOCHS][1])
        row = OffsetForLeaderPartition(key.partition, leader_epoch=epoch)
        if version >= 2:
            row.current_leader_epoch = leader_epoch
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(key.topic, [row])])
        if version >= 3:
            request.replica_id = self._broker_id
        response = cast(
            "OffsetForLeaderEpochResponse", await self._request(connection, request, version)
        )
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(found.error_code)
        return found.leader_epoch, found.end_offset

    async def _connection(self) -> AsyncConnection:
        try:
            return await self._connect()
        except Exception as error:
            raise LeaderUnreachable(str(error) or type(error).__name__) from error

    async def _request(
        self, connection: AsyncConnection, request: Message, version: int
    ) -> Message:
        try:
            return await connection.request(request, self._timeout_ms, version=version)
        except Exception as error:
            raise LeaderUnreachable(str(error) or type(error).__name__) from error
