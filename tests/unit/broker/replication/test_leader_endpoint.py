from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.replication.leader_endpoint import (
    EARLIEST_LOCAL,
    LATEST,
    LeaderEndpoint,
    LeaderUnreachable,
)
from ottla.protocol.client.aio_connection import AsyncConnection
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.topics import TopicPartition

KEY = TopicPartition("t", 3)


class ScriptedConnection:
    """Satisfies what is used of AsyncConnection."""

    def __init__(self, response: Message | Exception, **versions: int) -> None:
        self.versions = {2: (0, versions.get("offsets", 9)), 23: (0, versions.get("epochs", 4))}
        self.requests: list[tuple[Message, int, int]] = []
        self._response = response

    async def request(self, request: Message, timeout_ms: int, *, version: int) -> Message:
        self.requests.append((request, version, timeout_ms))
        if isinstance(self._response, Exception):
            raise self._response
        return self._response


def endpoint(connection: ScriptedConnection) -> LeaderEndpoint:
    async def connect() -> AsyncConnection:
        return cast(AsyncConnection, connection)

    return LeaderEndpoint(connect, 2, 700)


def offsets(**fields: int) -> ListOffsetsResponse:
    row = ListOffsetsPartitionResponse(3, **fields)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [row])])


def epochs(*fields: int) -> OffsetForLeaderEpochResponse:
    rows = [EpochEndOffset(*fields)]
    return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult("t", rows)])


async def test_an_offset_with_its_epoch() -> None:
    connection = ScriptedConnection(offsets(offset=70, leader_epoch=4))
    assert await endpoint(connection).offset(KEY, 5, EARLIEST_LOCAL) == (70, 4)
    ((request, version, timeout_ms),) = connection.requests
    assert isinstance(request, ListOffsetsRequest)
    row = request.topics[0].partitions[0]
    assert (row.timestamp, row.current_leader_epoch, request.replica_id) == (EARLIEST_LOCAL, 5, 2)
    assert (version, timeout_ms) == (9, 700)


async def test_a_leader_without_tiered_storage_sends_its_log_start() -> None:
    connection = ScriptedConnection(offsets(offset=70), offsets=7)
    await endpoint(connection).offset(KEY, 5, EARLIEST_LOCAL)
    request = cast(ListOffsetsRequest, connection.requests[0][0])
    assert request.topics[0].partitions[0].timestamp == -2


async def test_the_end_offset_of_an_epoch() -> None:
    connection = ScriptedConnection(epochs(0, 3, 2, 55))
    assert await endpoint(connection).end_offset_for_epoch(KEY, 5, 3) == (2, 55)
    request = connection.requests[0][0]
    assert isinstance(request, OffsetForLeaderEpochRequest)
    row = request.topics[0].partitions[0]
    assert (row.leader_epoch, row.current_leader_epoch, request.replica_id) == (3, 5, 2)


async def test_errors_of_the_partition_and_of_the_connection() -> None:
    refused = ScriptedConnection(offsets(error_code=ErrorCode.FENCED_LEADER_EPOCH))
    with pytest.raises(KafkaError):
        await endpoint(refused).offset(KEY, 5, LATEST)
    unknown = ScriptedConnection(epochs(ErrorCode.UNKNOWN_LEADER_EPOCH, 3, -1, -1))
    with pytest.raises(KafkaError):
        await endpoint(unknown).end_offset_for_epoch(KEY, 5, 3)
    broken = ScriptedConnection(ConnectionError("gone"))
    with pytest.raises(LeaderUnreachable, match="gone"):
        await endpoint(broken).offset(KEY, 5, LATEST)

    async def connect() -> AsyncConnection:
        raise ConnectionError("refused")

    with pytest.raises(LeaderUnreachable, match="refused"):
        await LeaderEndpoint(connect, 2, 700).end_offset_for_epoch(KEY, 5, 3)
