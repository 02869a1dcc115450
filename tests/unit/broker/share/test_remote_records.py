"""Share fetches of records that are in remote storage only (KIP-405)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.remote.remote_log_reader import RemoteLogReader
from ottla.broker.replication.delayed_remote_fetch import RemoteFetches
from ottla.broker.runtime.tasks import WorkerPool
from ottla.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    ShareFetchItem,
    ShareFetchParams,
    ShareFetchResult,
)
from ottla.broker.share.share_partitions import watch_key
from ottla.protocol.errors import ErrorCode
from ottla.storage.remote.remote_storage import RemoteStorageError
from tests.doubles.eventually import eventually_async
from tests.doubles.replicas import TOPIC
from tests.doubles.tiered_history import RemoteLogsOf, append_history
from tests.doubles.tiered_partition import TieredPartition
from tests.unit.broker.share.scene import KEY, ShareScene


class Scene(ShareScene):
    """A broker that leads a tiered partition."""

    def __init__(self, path: Path, **configs: str) -> None:
        super().__init__(**configs)
        self.tiered = TieredPartition(path)
        self.manager.partition(TOPIC, 0).log = self.tiered.log
        self.pool = WorkerPool(threads=1)
        self.reader = RemoteLogReader(
            *(RemoteLogsOf(self.tiered), self.pool, ReplicationQuota(), lambda: 1_000), threads=1
        )
        self.manager.remote_fetches = RemoteFetches(
            self.reader, self.timer, lambda: 500, self.manager.partitions.get
        )

    async def tier(self) -> None:
        await self.tiered.copy()
        assert self.tiered.expire_locally() > 0

    async def close(self) -> None:
        self.shares.drop_group("g")
        self.reader.close()
        await self.pool.close()
        await self.tiered.stop()

    def begin(self, member: str = "m", max_records: int = 500) -> list[ShareFetchResult]:
        """The results of a share fetch that waits."""
        results: list[ShareFetchResult] = []
        params = ShareFetchParams("g", member, 60_000, 1, 1 << 20, max_records, 500, False)
        operation = DelayedShareFetch(
            *(params, [ShareFetchItem(KEY, TOPIC)], self.shares, self.clock),
            lambda: True,
            results.extend,
        )
        keys = [watch_key(KEY), (TOPIC, 0)]
        self.manager.fetch_purgatory.try_complete_else_watch(operation, keys)
        return results

    async def fetched(self, member: str = "m", max_records: int = 500) -> ShareFetchResult:
        results = self.begin(member, max_records)
        await eventually_async(lambda: results)
        return results[0]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    await scene.tiered.start()
    yield scene
    await scene.close()


async def test_records_are_acquired_from_remote_storage_and_then_from_the_log(
    scene: Scene,
) -> None:
    scene.tiered.append(3)  # batches of two records
    await scene.tier()
    assert scene.tiered.log.local_log_start_offset == 4
    first = await scene.fetched(max_records=2)
    assert (first.error_code, first.acquired) == (ErrorCode.NONE, [(0, 1, 1)])
    assert len(first.records) > 0
    assert (await scene.fetched(max_records=2)).acquired == [(2, 3, 1)]
    assert (await scene.fetched("other")).acquired == [(4, 5, 1)]


async def test_aborted_transactions_are_left_out(tmp_path: Path) -> None:
    """The same records as from the local log."""
    acquired = []
    for is_tiered in (False, True):
        path = tmp_path / str(is_tiered)
        path.mkdir()
        scene = Scene(path, share_isolation_level="read_committed")
        await scene.tiered.start()
        append_history(scene.tiered, 30)
        if is_tiered:
            await scene.tier()
        found = []
        end_offset = 0
        while end_offset < 30:
            rows = (await scene.fetched(max_records=10)).acquired
            found += [tuple(row) for row in rows]
            end_offset = max((row.last_offset for row in rows), default=end_offset)
        acquired.append([row for row in found if row[1] < 30])
        await scene.close()
    assert acquired[0] == acquired[1] != []


async def test_a_fetch_waits_without_holding_the_loop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(2)
    await scene.tier()
    go_on, fetch = threading.Event(), scene.tiered.storage.fetch_log_segment

    def blocked(*arguments: object) -> bytes:
        assert go_on.wait(60)
        return fetch(*arguments)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(scene.tiered.storage, "fetch_log_segment", blocked)
    waiting = [scene.begin(), scene.begin("other")]
    assert waiting == [[], []]
    assert scene.reader.pending == 1
    go_on.set()
    await eventually_async(lambda: any(waiting))


async def test_an_error_of_the_store_is_one_that_share_consumers_retry(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(2)
    await scene.tier()

    def fail(*arguments: object) -> bytes:
        raise RemoteStorageError("no route to the store")

    with monkeypatch.context() as patch:
        patch.setattr(scene.tiered.storage, "fetch_log_segment", fail)
        failed = await scene.fetched()
    assert (failed.error_code, failed.acquired) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert (await scene.fetched()).acquired[0] == (0, 1, 1)
