"""A broker that ends at any step of copies and deletions loses no record and leaves no object.

Each seed plays appends, copies, local and remote retention with crashes in between: at the calls of
the file system with the store, and before and after the records of the metadata. After each step
every offset from the log start on is on the disk or can be read from remote storage. In the end,
after `ottla tiered gc`, the store has the objects of the readable segments and no others.

`make tiered-crashes SEEDS=n` plays more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from ottla.broker.remote.segment_expiration import ABANDONED_COPY_MS, SegmentExpiration
from ottla.storage.files.fs import FileSystem, RealFileSystem
from ottla.storage.remote.inventory import delete_orphans, take_inventory, verify_segment
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.tiered_partition import PARTITION, TieredPartition

SEEDS = int(os.environ.get("OTTLA_TIERED_CRASH_SEEDS", "30"))
RETAINED_SEGMENTS = 6  # each has two records
ACTIONS = ("append", "copy", "copy", "expire locally", "expire locally", "expire")
# Of a copy and a deletion together.
STEPS = 40
READS = ("close", "pread", "size", "exists", "list_files", "list_directories", "modified_ms")


class Crash(BaseException):
    """The broker ends here: nothing that follows in the code runs."""


class Steps:
    """Ends the broker at one of the next calls of the store or the metadata topic."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.has_crashed = False
        self.crashes = 0

    def count(self) -> None:
        if self.has_crashed:
            raise Crash  # cleaning up after an error does nothing
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.has_crashed = True
                self.crashes += 1
                raise Crash

    def next(self, left: int | None) -> None:
        self.left, self.has_crashed = left, False


class CrashingFileSystem:
    """A FileSystem whose changes are steps."""

    def __init__(self, steps: Steps) -> None:
        self._fs = RealFileSystem()
        self._steps = steps

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._fs, name)

        def call(*arguments: Any) -> Any:
            self._steps.count()
            return function(*arguments)

        return function if name in READS else call


def opened(scene: TieredPartition, steps: Steps, root: Path) -> ObjectRemoteStorage:
    """The folder `root` as the store of the scene."""
    root.mkdir()
    settings = {
        "storage.backend.class": "filesystem",
        "storage.root": str(root),
        "chunk.size": "1024",
    }
    storage = open_remote_storage(settings, fs=cast(FileSystem, CrashingFileSystem(steps)))
    scene.storage = scene.remote.storage = storage  # type: ignore[assignment]  # not in memory
    append = scene.topic.append

    async def append_or_crash(partition: int, value: bytes) -> int:
        steps.count()
        offset = await append(partition, value)
        steps.count()
        return offset

    scene.topic.append = append_or_crash  # type: ignore[method-assign]
    return storage


def check_nothing_is_lost(
    scene: TieredPartition, storage: ObjectRemoteStorage, *, read_content: bool = False
) -> None:
    log, cache = scene.log, scene.metadata.cache(PARTITION)
    assert log.log_start_offset <= max(0, log.log_end_offset - 2 * RETAINED_SEGMENTS)
    offset = log.log_start_offset
    while offset < log.local_log_start_offset:
        found = cache.segment_at(log.leader_epochs.epoch_for_offset(offset), offset)
        assert found is not None, f"offset {offset} is lost"
        assert list(verify_segment(storage, found, read_content=read_content)) == []
        offset = found.end_offset + 1


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_and_nothing_is_left(seed: int, tmp_path: Path) -> None:
    random, steps = Random(seed), Steps()
    (tmp_path / "logs").mkdir()
    scene = TieredPartition(tmp_path / "logs")
    storage = opened(scene, steps, tmp_path / "store")
    await scene.start()
    scene.append(1)
    size = scene.log.segments.first.size
    scene.log.update_config(scene.log.config.replace(retention_bytes=RETAINED_SEGMENTS * size))
    for _ in range(30):
        steps.next(random.randrange(STEPS) if random.random() < 0.6 else None)
        try:
            action = random.choice(ACTIONS)
            if action == "append":
                scene.append(random.randrange(6), epoch=steps.crashes)
            elif action == "copy":
                await scene.copy()
            elif action == "expire locally":
                scene.expire_locally()
            else:
                await SegmentExpiration(scene.remote, PARTITION).run(scene.log, lambda: True)
        except Crash:
            steps.next(None)
            await scene.restart()
        except RemoteStorageError:
            raise AssertionError("the store and the topic are available") from None
        steps.next(None)
        check_nothing_is_lost(scene, storage)

    scene.now_ms += ABANDONED_COPY_MS
    await scene.copy()
    await SegmentExpiration(scene.remote, PARTITION).run(scene.log, lambda: True)
    segments = scene.metadata.cache(PARTITION).segments()
    assert {each.state for each in segments} <= {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    # As `ottla tiered gc --execute` does, for objects of any age.
    delete_orphans(storage, take_inventory(storage, segments, 1 << 62).orphans)
    live = {key for each in segments for key in storage.keys.of(each)}
    assert {each.key for each in storage.store.list("")} == live
    check_nothing_is_lost(scene, storage, read_content=True)
    await scene.stop()
