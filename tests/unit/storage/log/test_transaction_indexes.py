"""A damaged index of aborted transactions is rebuilt when its log is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.log import Log
from ottla.storage.recovery.load_progress import DirectoryProgress
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, new_log
from tests.unit.storage.recovery.test_open_log import file_of, opened, with_zeros, write

ABORTED = [
    AbortedTransaction(1, 0, 3, 1),  # producer 2 has a transaction from offset 1 on
    AbortedTransaction(2, 1, 4, 5),
]


def written(fs: MemoryFileSystem) -> None:
    """Two transactions begin in the first segment and are aborted in the second."""
    fill(new_log(fs))


def fill(log: Log) -> None:
    for producer in (1, 2):
        append(log, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    append(log)
    log.roll(NOW_MS)
    for producer in (1, 2):
        end_transaction(log, producer, committed=False)
    log.roll(NOW_MS)
    append(log)
    log.flusher.flush()
    assert aborted_in(log) == ABORTED


def aborted_in(log: Log) -> list[AbortedTransaction]:
    return [each for segment in log.segments for each in segment.txn_index.entries()]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("with_snapshots", [False, True])
def test_it_is_rebuilt(clean: bool, with_snapshots: bool) -> None:
    fs = MemoryFileSystem()
    written(fs)
    intact = fs.content(file_of(3, ".txnindex"))
    if not with_snapshots:
        for path in fs.paths():
            if path.endswith(".snapshot"):
                fs.remove(path)
    with_zeros(fs, 3, ".txnindex")
    progress = DirectoryProgress()
    log = opened(fs, recovery_point=6, clean=clean, progress=progress)
    assert aborted_in(log) == ABORTED
    assert fs.content(file_of(3, ".txnindex")) == intact
    read = log.read(0, 1 << 20, up_to=6, read_committed=True)
    assert read.aborted_transactions == [(1, 0), (2, 1)]
    assert progress.recovered_bytes == 0, "the other segments are not read"
    assert log.log_end_offset == 6


def test_no_transaction_was_aborted() -> None:
    fs = MemoryFileSystem()
    written(fs)
    write(fs, file_of(5, ".txnindex"), bytes(10))
    log = opened(fs, clean=True)
    assert aborted_in(log) == ABORTED
    assert not fs.exists(file_of(5, ".txnindex"))


def test_it_stays_if_the_batches_are_damaged_too(caplog: pytest.LogCaptureFixture) -> None:
    """The log opens, and consumers of uncommitted records can read the others."""
    fs = MemoryFileSystem()
    written(fs)
    with_zeros(fs, 3, ".txnindex")
    damaged = fs.content(file_of(3, ".txnindex"))
    content = bytearray(fs.content(file_of(3)))
    content[8:12] = bytes(4)  # the length of the first batch
    fs.overwrite(file_of(3), bytes(content))
    log = opened(fs, recovery_point=6)
    assert log.log_end_offset == 6
    assert fs.content(file_of(3, ".txnindex")) == damaged
    assert "The transaction index cannot be rebuilt" in caplog.text


def test_it_is_durable() -> None:
    """A part of it would look valid after a power failure, and nothing else syncs it."""
    fs = MemoryFileSystem()
    written(fs)
    with_zeros(fs, 3, ".txnindex")
    fs.calls.clear()
    opened(fs, clean=True)
    path = file_of(3, ".txnindex")
    calls = [call for call, where in fs.calls if where.startswith(path)]
    assert calls.index("sync") < calls.index("replace")


def test_one_that_is_empty_is_rebuilt() -> None:
    """An index without entries has no file."""
    fs = MemoryFileSystem()
    written(fs)
    for base_offset in (3, 5):
        write(fs, file_of(base_offset, ".txnindex"), b"")
    log = opened(fs, clean=True)
    assert aborted_in(log) == ABORTED
    assert not fs.exists(file_of(5, ".txnindex")), "the next start would read the segment again"


def loaded(directory: Path) -> LogManager:
    manager = LogManager((str(directory),), LogConfig(), RealFileSystem())
    manager.load(NOW_MS)
    return manager


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "of-somebody").touch()


def _link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _circle(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("put", [_directory, _link, _circle, os.mkfifo])
def test_what_is_no_file_is_not_taken_for_an_index_without_entries(
    put: Callable[[Path], object], tmp_path: Path
) -> None:
    """Readers of committed records would get those of aborted transactions."""
    manager = loaded(tmp_path)
    fill(manager.get_or_create("t", 0, now_ms=NOW_MS))
    manager.shutdown(NOW_MS)
    for base_offset in (3, 5):
        path = tmp_path / "t-0" / f"{base_offset:020d}.txnindex"
        path.unlink(missing_ok=True)
        put(path)
    manager = loaded(tmp_path)
    log = manager.get("t", 0)
    assert log is not None
    assert aborted_in(log) == ABORTED
    manager.shutdown(NOW_MS)
    assert not list(tmp_path.glob("t-0/*05.txnindex"))
