"""Crashes at every step of copies to and deletions from a remote storage in a folder.

The disk is in memory. A process that is killed keeps what was written; a power failure loses what
was not synced. Whatever is left: what a copy returned is whole, what is damaged is never returned,
and gc removes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ottla.storage.files.fs import CREATE_EMPTY
from ottla.storage.remote.inventory import delete_orphans, take_inventory, verify_segment
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import RemoteResourceNotFoundError
from ottla.storage.remote.segments import LogSegmentData
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.remote_segments import LEADER_EPOCHS, segment_content, segment_metadata

CONTENT = segment_content(3000)
METADATA = segment_metadata(len(CONTENT))
FILES = LogSegmentData(
    Path("/log/0.log"),
    Path("/log/0.index"),
    Path("/log/0.timeindex"),
    None,
    Path("/log/0.snapshot"),
    LEADER_EPOCHS,
)
SETTINGS = {
    "storage.backend.class": "filesystem",
    "storage.root": "/remote",
    "chunk.size": "1024",
}


class Crash(BaseException):
    """The process ends here."""


class CrashingFileSystem(MemoryFileSystem):
    """After `steps` calls, each call ends the process; cleaning up after an error does nothing."""

    steps = 1_000_000

    def _call(self, operation: str, path: str) -> None:  # type: ignore[override]
        self.steps -= 1
        if self.steps < 0:
            raise Crash
        super()._call(operation, path)


def file_system() -> CrashingFileSystem:
    fs = CrashingFileSystem()
    for directory in ("/log", "/remote"):
        fs.make_directory(directory)
    for path, content in (
        ("/log/0.log", CONTENT),
        ("/log/0.index", b"offset index"),
        ("/log/0.timeindex", b"time index"),
        ("/log/0.snapshot", b"snapshot"),
    ):
        descriptor = fs.open(path, CREATE_EMPTY)
        fs.pwrite(descriptor, content, 0)
        fs.sync(descriptor)
        fs.close(descriptor)
    fs.sync_directory("/log")
    return fs


def opened(fs: MemoryFileSystem) -> ObjectRemoteStorage:
    return open_remote_storage(SETTINGS, fs=fs)


def crash_at(
    fs: CrashingFileSystem, step: int, work: Callable[[ObjectRemoteStorage], object]
) -> bool:
    """Whether the work was done before the crash."""
    storage = opened(fs)
    fs.steps = step
    try:
        work(storage)
    except Crash:
        return False
    finally:
        fs.steps = 1_000_000
    return True


def left_by(fs: CrashingFileSystem, random: Random) -> MemoryFileSystem:
    return fs.after_power_failure(random) if random.random() < 0.7 else fs.after_kill()


def copy(storage: ObjectRemoteStorage) -> None:
    storage.copy_log_segment(METADATA, FILES)


def delete(storage: ObjectRemoteStorage) -> None:
    storage.delete_log_segment(METADATA)


def test_a_crash_at_every_step_of_a_copy() -> None:
    random = Random(21)
    step, done = 0, False
    while not done:
        fs = file_system()
        done = crash_at(fs, step, copy)
        after = left_by(fs, random)
        storage = opened(after)
        try:
            # A manifest was written last: with it, all is there.
            assert storage.fetch_log_segment(METADATA, 0, 3000) == CONTENT
            assert list(verify_segment(storage, METADATA, read_content=True)) == []
        except RemoteResourceNotFoundError:
            assert not done
        if not done:
            # The next attempt, or gc, has a clean store.
            orphans = take_inventory(storage, [], 1 << 50, 0).orphans
            delete_orphans(storage, orphans)
            assert [path for path in after.paths() if path.startswith("/remote/")] == []
        step += 1
    assert step > 30


def test_a_crash_at_every_step_of_a_second_copy() -> None:
    """The same segment id is copied again, over what the first attempt left."""
    random = Random(22)
    step, done = 0, False
    while not done:
        fs = file_system()
        copy(opened(fs))
        done = crash_at(fs, step, copy)
        storage = opened(left_by(fs, random))
        assert storage.fetch_log_segment(METADATA, 0, 3000) == CONTENT
        assert list(verify_segment(storage, METADATA, read_content=True)) == []
        step += 1


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_every_step_of_a_deletion(seed: int) -> None:
    random = Random(seed)
    step, done = 0, False
    while not done:
        fs = file_system()
        copy(opened(fs))
        done = crash_at(fs, step, delete)
        after = left_by(fs, random)
        storage = opened(after)
        try:
            assert storage.fetch_log_segment(METADATA, 0, 3000) == CONTENT
            assert not done
        except RemoteResourceNotFoundError:
            assert step > 0
        delete(storage)  # the manager repeats what has begun
        assert [path for path in after.paths() if path.startswith("/remote/")] == []
        step += 1
    assert step > 2
