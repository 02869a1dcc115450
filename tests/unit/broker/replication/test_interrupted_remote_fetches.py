"""Fetches and searches of remote storage that are interrupted at each point where they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.replication.partition import READ_COMMITTED
from ottla.broker.runtime.tasks import WorkerPoolClosed
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.remote.remote_storage import RemoteStorageError
from tests.doubles.eventually import eventually_async
from tests.doubles.remote_fetches import WAIT_MS, Fetched, RemoteFetchScene, at, content
from tests.doubles.storage_logs import NOW_MS
from tests.doubles.tiered_history import append_history

OFFSET = 13


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[RemoteFetchScene]:
    """Transactions over several segments: a read looks into later ones for their ends."""
    scene = RemoteFetchScene(tmp_path)
    await scene.tiered.start()
    append_history(scene.tiered, 40, segment_batches=10)
    await scene.tier()
    yield scene
    await scene.close()


class Interruptions:
    """Calls `interrupt` once, at point number `left`: each is before or after a thread works."""

    def __init__(self, scene: RemoteFetchScene, interrupt: Callable[[], None]) -> None:
        self.left = -1
        self._interrupt = interrupt
        self._run = scene.reader.workers.run
        scene.reader.workers.run = self.run  # type: ignore[method-assign]

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._count()
        found = await self._run(function, *arguments)
        self._count()
        return found

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            self._interrupt()


def fail(error: Exception) -> Callable[[RemoteFetchScene], None]:
    def interrupt(scene: RemoteFetchScene) -> None:
        raise error

    return interrupt


def another_leader(scene: RemoteFetchScene) -> None:
    scene.partition.resign()
    scene.manager.complete_all_delayed_requests(scene.partition)


def deleted(scene: RemoteFetchScene) -> None:
    scene.manager.remove_partition(scene.partition.key)
    scene.manager.complete_all_delayed_requests(scene.partition)


def truncated(scene: RemoteFetchScene) -> None:
    scene.log.offsets.truncations += 1
    scene.manager.complete_all_delayed_requests(scene.partition)


def not_tiered(scene: RemoteFetchScene) -> None:
    scene.tiered.metadata.unassign(list(scene.tiered.metadata._partitions))


INTERRUPTIONS: dict[str, Callable[[RemoteFetchScene], None]] = {
    "another leader": another_leader,
    "deleted": deleted,
    "truncated": truncated,
    "metadata of the partition forgotten": not_tiered,
    "too late": lambda scene: scene.replicas.timer.advance(WAIT_MS),
    "records deleted": lambda scene: setattr(scene.log.offsets, "log_start_offset", 90),
    "reads ended": lambda scene: scene.reader.close(),
    "store fails": fail(RemoteStorageError("for the test")),
    "disk fails": fail(OSError("for the test")),
    "broker stops": fail(WorkerPoolClosed("for the test")),
}
# What a client gets: records, none, or an error after which it tries again.
EXPECTED = (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)


async def expected_records(scene: RemoteFetchScene) -> bytes:
    return content(await Fetched(scene, at(OFFSET), isolation=READ_COMMITTED).data())


@pytest.mark.parametrize("name", INTERRUPTIONS)
async def test_a_fetch_is_answered_once(
    scene: RemoteFetchScene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await expected_records(scene)
    partition, segments = scene.partition, scene.tiered.metadata._partitions.copy()
    interruptions = Interruptions(scene, lambda: INTERRUPTIONS[name](scene))
    for point in range(1_000):
        interruptions.left = point
        fetched = Fetched(scene, at(OFFSET), isolation=READ_COMMITTED)
        data = await fetched.data()
        assert data.error_code in EXPECTED
        assert content(data) in (b"", expected)
        await eventually_async(lambda: scene.reader.pending == 0)
        assert scene.fetches.purgatory.delayed == 0
        assert len(fetched.responses) == 1
        if interruptions.left >= 0:
            break
        # As it was before.
        partition.is_leader = True
        scene.manager.partitions[partition.key] = partition
        scene.tiered.metadata._partitions.update(segments)
        scene.log.offsets.log_start_offset = 0
    assert point >= 6
    assert content(data) == expected
    assert "Unexpected error" not in caplog.text


@pytest.mark.parametrize("error", [RemoteStorageError, OSError, WorkerPoolClosed])
async def test_a_search_by_timestamp_ends_with_an_error_for_clients(
    scene: RemoteFetchScene, error: type[Exception]
) -> None:
    def interrupt() -> None:
        raise error("for the test")

    expected = await scene.fetches.offset_for_timestamp(scene.log, NOW_MS + 500, 60)
    interruptions = Interruptions(scene, interrupt)
    for point in range(1_000):
        interruptions.left = point
        (found,) = await asyncio.gather(
            scene.fetches.offset_for_timestamp(scene.log, NOW_MS + 500, 60), return_exceptions=True
        )
        assert scene.reader.pending == 0
        if interruptions.left >= 0:
            break
        assert isinstance(found, KafkaError)
        assert found.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert point >= 4
    assert found == expected is not None


async def test_a_search_that_takes_too_long_reads_no_more(scene: RemoteFetchScene) -> None:
    with pytest.raises(KafkaError, match="too long"):
        await scene.fetches.offset_for_timestamp(scene.log, NOW_MS, 0)
    assert scene.reader.pending == 0


async def test_searches_count_as_reads(scene: RemoteFetchScene) -> None:
    scene.reader._max_reads = 0
    with pytest.raises(KafkaError, match="pending"):
        await scene.fetches.offset_for_timestamp(scene.log, NOW_MS, 60)
