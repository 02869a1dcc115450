"""OffsetForLeaderEpoch: the end offsets of leader epochs."""

from __future__ import annotations

import pytest

from ottla.broker.handlers.records.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.request_context import Asked


class Scene(Replicas):
    def __init__(self) -> None:
        super().__init__()
        self.handler = OffsetForLeaderEpochHandler(self.manager)

    def epoch_end(
        self, epoch: int, version: int = 4, current: int = -1, index: int = 0
    ) -> tuple[int, int, int]:
        """(error code, epoch, end offset)"""
        row = OffsetForLeaderPartition(partition=index, leader_epoch=epoch)
        if version >= 2:
            row.current_leader_epoch = current
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(TOPIC, [row])])
        asked = Asked(self.handler.handle, request, version)
        (found,) = asked.response(OffsetForLeaderEpochResponse).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", range(5))
def test_where_epochs_end(version: int) -> None:
    scene = Scene()
    scene.lead(epoch=2)
    scene.append(3)
    scene.order(1, epoch=5)
    scene.append(2)
    known = version >= 1
    assert scene.epoch_end(2, version) == (0, 2 if known else -1, 3)
    assert scene.epoch_end(4, version) == (0, 2 if known else -1, 3)
    assert scene.epoch_end(5, version) == (0, 5 if known else -1, 5)
    assert scene.epoch_end(6, version) == (0, -1, -1)
    assert scene.epoch_end(-1, version) == (0, -1, -1)


@pytest.mark.parametrize(
    ("current", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, 0)],
)
def test_epochs_of_clients_are_fenced(current: int, code: int) -> None:
    scene = Scene()
    scene.lead(epoch=5)
    assert scene.epoch_end(5, current=current)[0] == code


def test_only_the_leader_knows_where_epochs_end() -> None:
    scene = Scene()
    scene.follow(2)
    assert scene.epoch_end(0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    assert scene.epoch_end(0, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
