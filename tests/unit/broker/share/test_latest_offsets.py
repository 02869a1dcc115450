from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.share.latest_offsets import LatestOffsets
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.topics import TopicPartition

WHERE = TopicPartition("t", 3)


class Cluster:
    """This broker is 1; `leader` leads the partition. Broker 2 responds with `code`."""

    def __init__(self, leader: int, code: int = 0) -> None:
        self.leader = leader
        self.code = code
        self.offsets = LatestOffsets(1, cast(Any, self), cast(Any, self), self.send)

    @property
    def snapshot(self) -> Any:
        found = SimpleNamespace(leader=self.leader)
        return SimpleNamespace(brokers={1: None, 2: None}, partition=lambda *where: found)

    def partition(self, topic: str, index: int) -> Any:
        if self.code:
            raise KafkaError(self.code)
        return SimpleNamespace(leader_log=lambda: SimpleNamespace(high_watermark=11))

    async def send(self, broker_id: int, request: Message) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        assert (broker_id, request.topics[0].name) == (2, "t")
        if self.code == ErrorCode.NETWORK_EXCEPTION:
            raise ConnectionError("down")
        row = ListOffsetsPartitionResponse(3, self.code, offset=22)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [row])])


@pytest.mark.parametrize(
    ("leader", "code", "expected"),
    [
        (1, 0, 11),
        (2, 0, 22),
        (-1, 0, None),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
        (2, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
        (2, ErrorCode.NETWORK_EXCEPTION, None),
    ],
)
async def test_the_end_offset(leader: int, code: int, expected: int | None) -> None:
    assert await Cluster(leader, code).offsets.find(WHERE) == expected
