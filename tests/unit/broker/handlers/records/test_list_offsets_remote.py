"""ListOffsets by timestamp of a partition whose older records are in remote storage only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import isawaitable
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.remote_log_reader import RemoteLogReader
from ottla.broker.replication.delayed_remote_fetch import RemoteFetches
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.doubles.replicas import TOPIC
from tests.doubles.request_context import FakeContext
from tests.doubles.storage_logs import NOW_MS
from tests.doubles.tiered_history import RemoteLogsOf
from tests.doubles.tiered_partition import HOUR_MS, TieredPartition
from tests.unit.broker.handlers.scene import DataPath

HOURS = 8


class Scene:
    """Two records in each of four segments: the first at NOW_MS, the next one two hours later."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredPartition(path)
        self.path = DataPath()
        partition = self.path.lead()
        partition.log = self.log = self.tiered.log
        reader = RemoteLogReader(
            RemoteLogsOf(self.tiered), self.tiered.workers, ReplicationQuota(), lambda: 1_000
        )
        self.path.manager.remote_fetches = RemoteFetches(
            reader, self.path.timer, lambda: 500, self.path.manager.partitions.get
        )

    async def ask(self, timestamp: int) -> ListOffsetsPartitionResponse:
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsTopic(TOPIC, [ListOffsetsPartition(0, timestamp=timestamp)])],
        )
        context = cast(RequestContext, FakeContext(2, 9))
        response = self.path.list_offsets.handle(context, request)
        response = await response if isawaitable(response) else response
        row: ListOffsetsPartitionResponse = response.topics[0].partitions[0]
        return row


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    await scene.tiered.start()
    scene.tiered.append(3)
    scene.tiered.append(1, epoch=2)
    await scene.tiered.copy()
    scene.tiered.expire_locally()
    assert scene.log.local_log_start_offset == 6
    yield scene
    await scene.tiered.stop()


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, (NOW_MS, 0, 0)),
        (NOW_MS + 1, (NOW_MS + 1, 1, 0)),
        (NOW_MS + 2 * HOUR_MS, (NOW_MS + 2 * HOUR_MS, 2, 0)),
        (NOW_MS + 4 * HOUR_MS + 2, (NOW_MS + 6 * HOUR_MS, 6, 2)),
        (NOW_MS + HOURS * HOUR_MS, (-1, -1, -1)),
        (-1, (-1, 8, 0)),
        (-2, (-1, 0, 0)),
        (-4, (-1, 6, 2)),
        (-5, (-1, 5, 0)),
    ],
)
async def test_remote_and_local_records(
    scene: Scene, timestamp: int, expected: tuple[int, int, int]
) -> None:
    row = await scene.ask(timestamp)
    assert row.error_code == 0
    assert (row.timestamp, row.offset, row.leader_epoch) == expected


async def test_a_store_that_is_away_is_a_retriable_error(scene: Scene) -> None:
    scene.tiered.storage.fail = ["fetch"]
    row = await scene.ask(NOW_MS)
    assert (row.error_code, row.offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert (await scene.ask(NOW_MS)).offset == 0
