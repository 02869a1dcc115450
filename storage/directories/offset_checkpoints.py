"""Writing the offset checkpoints of the log directories from the offsets of their logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from ottla.storage.directories.log_directories import LogDirectories
from ottla.storage.files.checkpoints import Offsets
from ottla.storage.files.fs import READ_ONLY, UNUSABLE_FILE
from ottla.storage.files.layout import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.log.log import Log


class OffsetCheckpoints:
    """The checkpoints of recovery points, log starts and high watermarks of some logs.

    Each method writes the file of every online directory, or of `only` one, where it has other
    offsets. Synced. May run in a worker thread.
    """

    __slots__ = ("_confirmed", "_directories", "_kept", "_lock", "_logs")

    def __init__(self, directories: LogDirectories, logs: Mapping[tuple[str, int], Log]) -> None:
        """`logs` may change later."""
        self._directories = directories
        self._logs = logs
        # Two threads that write the same checkpoint would replace each other's temporary file, and
        # the older offsets could remain.
        self._lock = Lock()
        # Of logs that could not be opened: by checkpoint, and directory.
        self._kept: dict[tuple[str, str], Offsets] = {}
        # The log start that the leader epochs of a log on disk confirm, by its path.
        self._confirmed: dict[str, int] = {}

    def write_recovery_points(self, only: LogDirectory | None = None) -> None:
        """Write `recovery-point-offset-checkpoint`. Raises StorageError for `only` one.

        Log starts are written before: a log start raises the recovery point without a sync, so a
        crash must not leave a recovery point above records that are back in the log.
        """
        with self._lock:
            self._write_recovery_points(only)

    def _write_recovery_points(self, only: LogDirectory | None) -> None:
        points = self._collect(lambda log: log.offsets.recovery_point_on_disk, only)
        starts = self._collect(self._log_start, only)
        self._write(LOG_START_CHECKPOINT, starts, only)
        self._write(RECOVERY_POINT_CHECKPOINT, points, only)

    def keep(self, directory: LogDirectory, key: tuple[str, int], known: Mapping[str, int]) -> None:
        """Leave the offsets of a log that could not be opened as they are: checkpoint by name."""
        for name, offset in known.items():
            self._kept.setdefault((name, directory.path), {})[key] = offset

    def forget(self, directory: LogDirectory, key: tuple[str, int]) -> None:
        """Before a log is created: the checkpoints must not have offsets of an earlier one.

        Recovery after a crash would not read the new log below them, or let it begin there.
        Raises StorageError.
        """
        is_known = self._directories.may_be_in_checkpoint
        with self._lock:
            for (_, path), offsets in self._kept.items():
                if path == directory.path:
                    offsets.pop(key, None)
            if any(
                is_known(directory, name, key)
                for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT)
            ):
                self._write_recovery_points(directory)

    def write_high_watermarks(self) -> None:
        """Write `replication-offset-checkpoint`."""
        with self._lock:
            self._write(HIGH_WATERMARK_CHECKPOINT, self._collect(lambda log: log.high_watermark))

    def write_log_starts(self, only: LogDirectory | None = None) -> None:
        """Write `log-start-offset-checkpoint`, for logs that do not start with a segment, and for
        all with tiered storage. Raises StorageError for `only` one."""
        with self._lock:
            self._write(LOG_START_CHECKPOINT, self._collect(self._log_start, only), only)

    def _log_start(self, log: Log) -> int | None:
        offset = _log_start(log)
        if offset is not None and self._confirmed.get(log.path) != offset:
            self._sync_epochs(log, offset)
        return offset

    def _sync_epochs(self, log: Log, log_start_offset: int) -> None:
        """Recovery believes a log start if the leader epochs begin there. They are synced first."""
        fs, directory = log.log_directory.fs, log.log_directory
        try:
            descriptor = fs.open(log.leader_epochs.path, READ_ONLY)
            try:
                fs.sync(descriptor)
            finally:
                fs.close(descriptor)
            fs.sync_directory(log.path)
        except OSError as error:
            # Without that file, or with a link or a directory in its place, nothing is confirmed:
            # recovery then keeps records that were deleted. It is no error of the disk.
            if error.errno not in UNUSABLE_FILE:
                directory.read_failed(error)
        else:
            self._confirmed[log.path] = log_start_offset

    def _collect(
        self, offset_of: Callable[[Log], int | None], only: LogDirectory | None = None
    ) -> dict[str, Offsets]:
        """The offsets of all logs by the path of their directory."""
        chosen = self._directories.online() if only is None else [only]
        by_directory: dict[str, Offsets] = {directory.path: {} for directory in chosen}
        # Copied in one step, as the loop opens and deletes logs meanwhile: `list(items())` makes a
        # tuple for each, so that the garbage collector may run in between and let the loop go on.
        for key, log in dict(self._logs).items():
            offsets = by_directory.get(log.log_directory.path)
            if offsets is None:
                continue  # offline: a log there may have been left without a segment
            offset = offset_of(log)
            if offset is not None:
                offsets[key] = offset
        return by_directory

    def _write(
        self, name: str, by_directory: dict[str, Offsets], only: LogDirectory | None = None
    ) -> None:
        for path, offsets in by_directory.items():
            for key, offset in self._kept.get((name, path), {}).items():
                offsets.setdefault(key, offset)
        if only is None:
            self._directories.write_checkpoint(name, by_directory)
        else:
            self._directories.write_checkpoint_of(only, name, by_directory[only.path])
        if name == LOG_START_CHECKPOINT:
            self._note_durable(by_directory)

    def _note_durable(self, by_directory: dict[str, Offsets]) -> None:
        for path, offsets in by_directory.items():
            if not self._directories.has_written(path, LOG_START_CHECKPOINT, offsets):
                continue  # it failed
            for key, offset in offsets.items():
                log = self._logs.get(key)
                if log is not None and log.log_directory.path == path:
                    log.offsets.durable_log_start = offset


def _log_start(log: Log) -> int | None:
    offset = log.log_start_offset
    try:
        first = log.segments.first.base_offset
    except IndexError:  # this is a worker thread, and the log is being truncated fully
        return offset
    config = log.config
    is_tiered = config.remote_storage_enable or (
        config.has_remote_storage and offset < log.local_log_start_offset
    )
    return offset if is_tiered or offset > first else None
