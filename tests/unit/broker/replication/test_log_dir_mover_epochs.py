"""Moving replicas of a log whose leader epochs are older than what is on its disk."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.replication import log_dir_mover
from ottla.protocol.steps import run_at_once
from ottla.storage.errors import DiskFull
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.log import leader_epochs
from tests.doubles.storage_logs import NOW_MS
from tests.unit.broker.replication.test_log_dir_mover import Scene, content, of_leader


@pytest.mark.parametrize("failures", range(2, 7))
async def test_a_copy_whose_epochs_cannot_be_written_is_complete_in_the_end(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The copy lacks the epochs of deleted records until it replaces the log."""
    monkeypatch.setattr(log_dir_mover, "_RETRY_SECONDS", 0.001)
    scene = Scene()
    for epoch in range(3):
        of_leader(scene.log, epoch, 20)
        scene.log.roll(NOW_MS)
    scene.log.offsets.update_high_watermark(60)
    scene.log.truncator.delete_records_before(45)
    run_at_once(scene.log.retention.delete_old_segments(NOW_MS))
    of_leader(scene.log, 3, 5)
    assert scene.log.leader_epochs.entries == [(2, 45), (3, 60)]
    scene.log.leader_epochs.replace([(0, 0), (1, 20), (2, 40), (3, 60)])  # as of a tiered log
    expected = content(scene.log)[5:]  # from offset 45 on: a batch has one record
    writes = 0
    real = leader_epochs.write_epoch_checkpoint

    def write(fs: FileSystem, path: str, entries: list[tuple[int, int]], *, sync: bool) -> None:
        nonlocal writes
        writes += path.startswith("/b/")
        if path.startswith("/b/") and writes == failures:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fs, path, entries, sync=sync)

    monkeypatch.setattr(leader_epochs, "write_epoch_checkpoint", write)
    scene.logs.directories.find("/b").update_free_bytes(1 << 30, 0)
    mark_full = LogDirectory.mark_full

    def full_for_a_moment(directory: LogDirectory, reason: str) -> DiskFull:
        error = mark_full(directory, reason)
        directory.check_free_bytes(0)  # which writes a file to see whether there is space
        return error

    monkeypatch.setattr(LogDirectory, "mark_full", full_for_a_moment)
    moved = await scene.move()
    assert moved.path == "/b/t-0"
    assert content(moved) == expected
