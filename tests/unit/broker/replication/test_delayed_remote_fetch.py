"""Fetches below the local log start offset: what consumers and followers get, and when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.remote.remote_log_reader import RemoteLogReadResult
from ottla.broker.replication.partition import READ_COMMITTED, READ_LOG_END
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import AbortedTransaction, FetchPartition
from tests.doubles.eventually import eventually_async
from tests.doubles.remote_fetches import WAIT_MS, Fetched, RemoteFetchScene, at, content
from tests.doubles.tiered_history import append_history


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[RemoteFetchScene]:
    scene = RemoteFetchScene(tmp_path)
    await scene.tiered.start()
    yield scene
    await scene.close()


async def local(
    scene: RemoteFetchScene, position: FetchPartition, **fields: int
) -> tuple[bytes, object]:
    data = await Fetched(scene, position, max_wait_ms=0, **fields).data()
    return content(data), data.aborted_transactions


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
async def test_a_consumer_reads_the_bytes_of_the_local_log(
    scene: RemoteFetchScene, isolation: int
) -> None:
    append_history(scene.tiered, 30)
    positions = [at(0), at(13, max_bytes=700), at(40, max_bytes=10)]
    before = [await local(scene, each, isolation=isolation) for each in positions]
    await scene.tier()
    for position, (records, aborted) in zip(positions, before, strict=True):
        data = await Fetched(scene, position, isolation=isolation, max_wait_ms=0).data()
        assert data.error_code == 0
        assert content(data) == records != b""
        assert data.aborted_transactions == aborted
        assert data.high_watermark == scene.log.log_end_offset
        assert data.log_start_offset == 0
    assert scene.reader.pending == 0


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
async def test_records_in_memory_are_returned_in_the_same_turn(
    scene: RemoteFetchScene, monkeypatch: pytest.MonkeyPatch, isolation: int
) -> None:
    found = RemoteLogReadResult(b"records", [(7, 3)] if isolation else None)
    monkeypatch.setattr(scene.reader, "read_in_memory", lambda *_: found)
    scene.tiered.append(3)
    await scene.tier()
    fetched = Fetched(scene, at(0), isolation=isolation)
    (response,) = fetched.responses
    assert response[0][1].records == b"records"
    aborted = response[0][1].aborted_transactions
    assert aborted == ([AbortedTransaction(7, 3)] if isolation else None)
    assert scene.reader.pending == scene.fetches.purgatory.delayed == 0


async def test_the_loop_does_not_wait_for_the_store(
    scene: RemoteFetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(3)
    await scene.tier()
    go_on = scene.block(monkeypatch)
    fetched = Fetched(scene, at(0))
    assert fetched.responses == []
    assert scene.fetches.purgatory.delayed == 1
    scene.replicas.append(index=1)
    assert len(content(await Fetched(scene, at(0, 1)).data())) > 0
    assert fetched.responses == []
    go_on.set()
    assert len(content(await fetched.data())) > 0
    assert scene.fetches.purgatory.delayed == 0


async def test_local_partitions_come_with_the_first_remote_one(scene: RemoteFetchScene) -> None:
    scene.tiered.append(3)
    expected, _ = await local(scene, at(0))
    await scene.tier()
    scene.replicas.append(3, index=1)
    fetched = Fetched(scene, at(0, 1), at(0), at(2))
    assert len(content(await fetched.data(0))) > 0
    assert content(await fetched.data(1)) == expected
    second_remote = await fetched.data(2)
    assert (content(second_remote), second_remote.error_code) == (b"", 0)


async def test_the_limit_of_the_response_includes_remote_records(scene: RemoteFetchScene) -> None:
    append_history(scene.tiered, 30)
    await scene.tier()
    for _ in range(50):
        scene.replicas.append(3, index=1)
    fetched = Fetched(scene, at(0, max_bytes=2_000), at(0, 1), max_bytes=5_000)
    remote, others = content(await fetched.data(0)), content(await fetched.data(1))
    assert 0 < len(remote) <= 2_000
    assert 0 < len(others) <= 3_000


async def test_a_fetch_that_waits_too_long_has_no_records_and_no_error(
    scene: RemoteFetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(3)
    expected, _ = await local(scene, at(0))
    await scene.tier()
    go_on = scene.block(monkeypatch)
    fetched = Fetched(scene, at(0))
    await eventually_async(lambda: next(iter(scene.reader._reads.values())).started)
    scene.replicas.timer.advance(WAIT_MS - 1)
    assert fetched.responses == []
    scene.replicas.timer.advance(1)
    data = await fetched.data()
    assert (content(data), data.error_code) == (b"", 0)
    assert scene.fetches.purgatory.expired_total == 1
    # The next fetch has what the thread reads.
    again = Fetched(scene, at(0))
    assert scene.reader.statistics.total("reads") == 1
    go_on.set()
    assert content(await again.data()) == expected


async def test_a_store_that_is_away_is_a_retriable_error(scene: RemoteFetchScene) -> None:
    scene.tiered.append(3)
    await scene.tier()
    scene.tiered.storage.fail = ["fetch"]
    data = await Fetched(scene, at(0)).data()
    assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (content(data), data.high_watermark) == (b"", -1)
    assert len(content(await Fetched(scene, at(0)).data())) > 0


async def test_too_many_reads_are_a_retriable_error(
    scene: RemoteFetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(3)
    await scene.tier()
    go_on = scene.block(monkeypatch)
    scene.set_limits(threads=1, max_pending_tasks=1)
    first, second = Fetched(scene, at(0)), Fetched(scene, at(1))
    assert (await Fetched(scene, at(2)).data()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    go_on.set()
    assert len(content(await first.data())) > 0
    assert len(content(await second.data())) > 0


async def test_a_throttled_partition_does_not_complete_a_fetch(scene: RemoteFetchScene) -> None:
    scene.tiered.append(3)
    await scene.tier()
    scene.quota.limit = 1
    scene.quota.record(100_000, 1_000)
    fetched = Fetched(scene, at(0), at(0, 1), isolation=READ_COMMITTED)
    assert fetched.responses == []
    scene.replicas.append(index=1)
    remote = await fetched.data(0)
    assert (content(remote), remote.error_code) == (b"", 0)
    assert len(content(await fetched.data(1))) > 0
    alone = Fetched(scene, at(0))
    assert alone.responses == []
    scene.replicas.timer.advance(1_000)
    assert content(await alone.data()) == b""
    assert scene.reader.statistics.total("reads") == 0


async def test_a_follower_learns_that_the_offset_moved(scene: RemoteFetchScene) -> None:
    scene.tiered.append(3)
    await scene.tier()
    follower = {"replica_id": 2, "isolation": READ_LOG_END}
    fetched = Fetched(scene, at(0), at(0, 1, log_start_offset=0), **follower)
    data = await fetched.data()
    assert data.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert (data.log_start_offset, content(data)) == (0, b"")
    assert data.high_watermark == scene.log.high_watermark
    assert scene.reader.statistics.total("reads") == 0
    below = await Fetched(scene, at(scene.log.local_log_start_offset), **follower).data()
    assert below.error_code == 0


async def test_another_leader_completes_the_fetch_without_the_records(
    scene: RemoteFetchScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.tiered.append(3)
    await scene.tier()
    go_on = scene.block(monkeypatch)
    fetched = Fetched(scene, at(0))
    await eventually_async(lambda: next(iter(scene.reader._reads.values())).started)
    scene.partition.resign()
    scene.manager.complete_all_delayed_requests(scene.partition)
    assert content(await fetched.data()) == b""
    go_on.set()


async def test_without_tiered_storage_such_an_offset_is_out_of_range(
    scene: RemoteFetchScene,
) -> None:
    scene.tiered.append(3)
    await scene.tier()
    scene.manager.remote_fetches = None
    data = await Fetched(scene, at(0)).data()
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_the_records_of_completed_fetches_are_not_kept(scene: RemoteFetchScene) -> None:
    """The purgatory keeps the operations of a thousand of them."""
    scene.tiered.append(3)
    await scene.tier()
    fetched = Fetched(scene, at(0))
    (read,) = scene.reader._reads.values()
    task = weakref.ref(read._task)
    assert len(content(await fetched.data())) > 0
    assert scene.fetches.purgatory.watched == 1
    del read, fetched
    await eventually_async(lambda: gc.collect() >= 0 and task() is None)


async def test_no_fetch_leaves_something_for_the_next_one(scene: RemoteFetchScene) -> None:
    """A delayed fetch whose partition moves to remote storage meanwhile gets no records of it."""
    scene.tiered.append(3)
    await scene.tier()
    scene.quota.limit = 1
    scene.quota.record(100_000, 1_000)
    throttled = Fetched(scene, at(0), at(0, 1))
    scene.quota.limit = 1 << 60
    scene.replicas.append(index=1)  # completes it, and reads both partitions again
    assert content(await throttled.data(0)) == b""
    assert len(content(await throttled.data(1))) > 0
    assert scene.reader.statistics.total("reads") == 0
    other = Fetched(scene, at(0, 1))
    assert len(content(await other.data())) > 0
    assert scene.reader.statistics.total("reads") == 0
