"""Copies, expirations and deletions that are interrupted at each point where they wait.

After the interruption another broker leads. It loses nothing and leaves nothing in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.remote.segment_expiration import (
    ABANDONED_COPY_MS,
    SegmentExpiration,
    delete_partition,
)
from ottla.broker.runtime.tasks import WorkerPoolClosed, spawn
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.tiered_partition import PARTITION, TieredPartition

Action = Callable[[TieredPartition], Coroutine[Any, Any, None]]

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
SEGMENTS = 3


class Interruptions:
    """Calls `interrupt` once, at point number `left`: each is before or after a thread works, or a
    record of the metadata is written."""

    def __init__(self, scene: TieredPartition, interrupt: Callable[[], None]) -> None:
        self.left = -1
        self._interrupt = interrupt
        self._run, self._append = scene.workers.run, scene.topic.append
        scene.workers.run = self.run  # type: ignore[method-assign]
        scene.topic.append = self.append  # type: ignore[method-assign]

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._count()
        found = await self._run(function, *arguments)
        self._count()
        return found

    async def append(self, partition: int, value: bytes) -> int:
        self._count()
        offset = await self._append(partition, value)
        self._count()
        return offset

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            self._interrupt()


def fail(error: Exception) -> Callable[[TieredPartition], None]:
    def interrupt(scene: TieredPartition) -> None:
        raise error

    return interrupt


def cancelled(scene: TieredPartition) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def another_leader(scene: TieredPartition) -> None:
    scene.is_leader = False


def truncated(scene: TieredPartition) -> None:
    scene.log.offsets.truncations += 1


def disabled(scene: TieredPartition) -> None:
    scene.log.update_config(scene.log.config.replace(remote_storage_enable=False))
    scene.is_leader = False
    scene.metadata.unassign([PARTITION])


def records_deleted(scene: TieredPartition) -> None:
    scene.log.truncator.delete_records_before(3)
    scene.expire_locally()


INTERRUPTIONS: dict[str, Callable[[TieredPartition], None]] = {
    "task cancelled": cancelled,
    "another leader": another_leader,
    "log truncated": truncated,
    "tiered storage disabled": disabled,
    "records deleted": records_deleted,
    "store fails": fail(RemoteStorageError("for the test")),
    "broker stops": fail(WorkerPoolClosed("for the test")),
    "defect": fail(ValueError("for the test")),
}


async def copy(scene: TieredPartition) -> None:
    scene.append(2)
    await scene.copy()


async def expire(scene: TieredPartition) -> None:
    scene.log.update_config(scene.log.config.replace(retention_bytes=1))
    await SegmentExpiration(scene.remote, PARTITION).run(scene.log, lambda: scene.is_leader)


async def delete(scene: TieredPartition) -> None:
    await delete_partition(scene.remote, PARTITION)


@pytest.mark.parametrize("name", INTERRUPTIONS)
@pytest.mark.parametrize("action", [copy, expire, delete])
async def test_the_next_leader_loses_nothing_and_leaves_nothing(
    action: Action, name: str, tmp_path: Path
) -> None:
    point = -1
    interrupted = True
    while interrupted:
        point += 1
        scene = TieredPartition(tmp_path / str(point))
        await scene.start()
        scene.append(SEGMENTS)
        await scene.copy()
        interruptions = Interruptions(scene, lambda: INTERRUPTIONS[name](scene))  # noqa: B023
        interruptions.left = point
        task = spawn(action(scene), name="interrupted")
        await asyncio.wait([task])
        interrupted = interruptions.left < 0
        interruptions.left = -1
        await finish(scene, action)
        await scene.stop()
    assert point >= 8
    assert task.exception() is None  # the last one, which nothing interrupted


async def finish(scene: TieredPartition, action: Action) -> None:
    """The next leader, an hour later."""
    log = scene.log
    scene.is_leader = True
    log.update_config(log.config.replace(remote_storage_enable=True))
    await scene.restart()
    scene.now_ms += ABANDONED_COPY_MS
    if action is delete:
        await delete(scene)
        assert (scene.storage.objects, scene.states()) == ({}, [])
        return
    scene.append(1, epoch=1)
    await scene.copy()
    scene.expire_locally()
    await SegmentExpiration(scene.remote, PARTITION).run(log, lambda: True)
    cache = scene.metadata.cache(PARTITION)
    assert set(scene.states()) <= {FINISHED}
    assert scene.storage.objects.keys() == {each.segment_id.id for each in cache.segments()}
    for offset in range(log.log_start_offset, log.local_log_start_offset):
        found = cache.segment_at(log.leader_epochs.epoch_for_offset(offset), offset)
        assert found is not None
