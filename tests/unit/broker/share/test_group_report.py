from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.share.group_report import LatestOffsets, report
from ottla.broker.share.share_partition import Acknowledgement
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import TOPIC, run_now
from tests.unit.broker.share.scene import KEY, ShareScene
from tests.unit.broker.share.test_share_partitions import fetched


def of(scene: ShareScene, group_id: str = "g") -> Any:
    return json.loads(report(scene.shares, group_id, scene.clock.now_ms()))


def test_records_in_flight_locks_and_deliveries() -> None:
    scene = ShareScene(share_record_lock_duration_ms="5000")
    scene.append(3)
    assert of(scene) == {"partitions": [], "counts": None}
    fetched(scene)
    scene.timer.advance(2000)
    (row,) = of(scene)["partitions"]
    assert (row["topic"], row["partition"], row["start_offset"], row["end_offset"]) == (
        *(TOPIC, 0, 0, 3),
    )
    assert (row["in_flight"], row["locked"], row["members"]) == (3, 3, 1)
    assert (row["oldest_lock_ms"], row["most_deliveries"]) == (2000, 1)
    run_now(scene.shares.acknowledge(KEY, TOPIC, "m", [Acknowledgement(0, 0, [1])]))
    scene.timer.advance(3001)
    found = of(scene)
    (row,) = found["partitions"]
    assert (row["in_flight"], row["locked"], row["oldest_lock_ms"]) == (2, 0, None)
    assert found["counts"]["acknowledged"]["accept"] == 1
    assert found["counts"]["expired_locks"] == 2
    assert of(scene, "other") == {"partitions": [], "counts": None}


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
