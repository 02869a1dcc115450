from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.remote_log_reader import RemoteLogReader
from ottla.broker.replication.delayed_remote_fetch import RemoteFetches
from ottla.broker.share.acquisition import AcquiredRecords
from ottla.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    ShareFetchItem,
    ShareFetchParams,
    ShareFetchResult,
)
from ottla.broker.share.group_settings import OffsetReset
from ottla.broker.share.log_reader import read, readable_bytes, reset_offset
from ottla.broker.share.share_partition import Acknowledgement
from ottla.broker.share.share_partitions import watch_key
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.reader import read_records
from tests.doubles.eventually import eventually_async
from tests.doubles.replicas import TOPIC, Replicas, run_now
from tests.doubles.tiered_history import RemoteLogsOf
from tests.doubles.tiered_partition import TieredPartition
from tests.unit.broker.share.scene import KEY, ShareScene


def test_batches_from_the_one_with_the_offset_on() -> None:
    replicas = Replicas()
    partition = replicas.lead()
    for count in (2, 3, 4):
        replicas.append(count)
    log = partition.leader_log()
    found = read(log, 3, 1 << 20, False, 100)
    assert found is not None
    assert [batch[:2] for batch in found.batches] == [(2, 4), (5, 8)]
    part = found.of_acquired([AcquiredRecords(3, 4, 1)])
    assert [record.offset for record in read_records(part)] == [2, 3, 4]
    assert read(log, 9, 1 << 20, False, 100) is None
    assert readable_bytes(log, 9, 10, False) == 0
    assert readable_bytes(log, 0, 10, False) == 10


def test_no_more_batches_than_can_be_acquired() -> None:
    replicas = Replicas()
    log = replicas.lead().leader_log()
    for count in (2, 3, 4, 5):
        replicas.append(count)

    def last_offset(offset: int, most_records: int) -> int:
        found = read(log, offset, 1 << 20, False, most_records)
        assert found is not None
        assert [record.offset for record in read_records(found.records)][-1] == (
            found.batches[-1].last_offset
        )
        return found.batches[-1].last_offset

    assert [last_offset(0, most) for most in (0, 1, 2, 3, 5, 6, 100)] == [1, 1, 1, 4, 4, 8, 13]
    assert [last_offset(3, most) for most in (1, 2, 3, 6, 7)] == [4, 4, 8, 8, 13]


def test_where_a_group_without_state_begins() -> None:
    replicas = Replicas()
    log = replicas.lead().leader_log()
    replicas.append(5)
    now_ms = replicas.clock.now_ms()
    assert reset_offset(log, OffsetReset(True), now_ms) == 0
    assert reset_offset(log, OffsetReset(False), now_ms) == 5
    assert reset_offset(log, OffsetReset(False, 0), now_ms + 10**12) == 5
    assert reset_offset(log, OffsetReset(False, now_ms), now_ms) == 0


MAX_WAIT_MS = 5_000


class Scene:
    """Offsets 0 to 5 in remote storage, in segments of two records, and 6 to 7 on the disk."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredPartition(path)
        self.shares = ShareScene()
        partition = self.shares.manager.partition(TOPIC, 0)
        partition.log = self.log = self.tiered.log
        self.quota = ReplicationQuota()
        self.reader = RemoteLogReader(
            RemoteLogsOf(self.tiered), self.tiered.workers, self.quota, lambda: 1_000
        )
        self.manager = self.shares.manager
        self.manager.remote_fetches = RemoteFetches(
            self.reader, self.shares.timer, lambda: 500, self.manager.partitions.get
        )

    def fetch(self, member: str = "m", **fields: int) -> list[ShareFetchResult]:
        """What the response has, when it comes."""
        results: list[ShareFetchResult] = []
        params = ShareFetchParams("g", member, MAX_WAIT_MS, 1, 1 << 20, 500, 500, False)
        operation = DelayedShareFetch(
            params._replace(**fields),
            [ShareFetchItem(KEY, TOPIC)],
            self.shares.shares,
            self.shares.clock,
            lambda: True,
            lambda topic: True,
            results.extend,
        )
        keys = [watch_key(KEY), (TOPIC, 0)]
        self.manager.fetch_purgatory.try_complete_else_watch(operation, keys)
        return results

    async def result(self, member: str = "m") -> ShareFetchResult:
        results = self.fetch(member)
        await eventually_async(lambda: results)
        return results[0]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    await scene.tiered.start()
    scene.tiered.append(4)
    await scene.tiered.copy()
    assert scene.tiered.expire_locally() == 3
    yield scene
    scene.reader.close()
    await scene.tiered.stop()


async def test_records_are_acquired_across_the_boundary(scene: Scene) -> None:
    acquired = []
    for _ in range(4):
        result = await scene.result()
        assert result.error_code == ErrorCode.NONE
        assert len(result.records) > 0
        ((first, last, count),) = result.acquired
        acquired.append((first, last, count))
        run_now(
            scene.shares.shares.acknowledge(KEY, TOPIC, "m", [Acknowledgement(first, last, [1])])
        )
    assert acquired == [(0, 1, 1), (2, 3, 1), (4, 5, 1), (6, 7, 1)]
    assert scene.reader.statistics.total("reads") == 3
    assert scene.reader.pending == 0


async def test_two_members_do_not_get_the_same_records(scene: Scene) -> None:
    one, other = scene.fetch("one"), scene.fetch("other")
    await eventually_async(lambda: one and other)
    found = sorted(row for result in (*one, *other) for row in result.acquired)
    assert found == [(0, 1, 1)]
    assert {result.error_code for result in (*one, *other)} == {0}
    assert (await scene.result("other")).acquired == [(2, 3, 1)]


async def test_a_store_that_fails_is_a_retriable_error(scene: Scene) -> None:
    scene.tiered.storage.fail = ["fetch"]
    result = await scene.result()
    assert (result.error_code, result.acquired) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert (await scene.result()).acquired == [(0, 1, 1)]


async def test_too_many_reads_are_a_retriable_error(scene: Scene) -> None:
    scene.reader._max_reads = 0
    result = await scene.result()
    assert (result.error_code, result.acquired) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def test_it_waits_while_the_quota_is_exceeded(scene: Scene) -> None:
    scene.quota.limit = 1
    scene.quota.record(100_000, 1_000)
    results = scene.fetch()
    assert results == []
    scene.shares.timer.advance(MAX_WAIT_MS + 1)
    assert [(each.error_code, each.acquired) for each in results] == [(0, [])]
    assert scene.reader.statistics.total("reads") == 0


async def test_a_response_that_is_late_has_no_records(scene: Scene) -> None:
    results = scene.fetch()
    scene.shares.timer.advance(MAX_WAIT_MS + 1)
    assert [(each.error_code, each.acquired) for each in results] == [(0, [])]
    await eventually_async(lambda: scene.reader.pending == 0)
    assert (await scene.result()).acquired == [(0, 1, 1)]


async def test_a_truncated_log_has_other_records(scene: Scene) -> None:
    results = scene.fetch()
    scene.log.offsets.truncations += 1
    await eventually_async(lambda: results)
    assert (results[0].error_code, results[0].acquired) == (0, [])


async def test_without_tiered_storage_the_offset_is_out_of_range(scene: Scene) -> None:
    scene.manager.remote_fetches = None
    assert (await scene.result()).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
