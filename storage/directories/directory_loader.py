"""Opening all logs of one log directory."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from ottla.storage.config import LogConfig
from ottla.storage.directories.same_directory import is_log_directory
from ottla.storage.errors import CorruptFile
from ottla.storage.files.checkpoints import Offsets, read_clean_shutdown, read_offset_checkpoint
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import UNUSABLE_FILE
from ottla.storage.files.layout import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_CHECKPOINT,
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_DIRECTORY_SUFFIX,
    parse_partition_directory,
)
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import of_directory
from ottla.storage.log.local_log import PartitionDirectory
from ottla.storage.log.log import Log
from ottla.storage.recovery.directory_repair import NOT_THERE
from ottla.storage.recovery.load_progress import DirectoryProgress, bytes_to_recover
from ottla.storage.recovery.recovery import Opening, open_log

logger = logging.getLogger("ottla.storage")

_OFFSET_MAX = (1 << 63) - 1

ConfigOf = Callable[[str], LogConfig]


class LoadedDirectory:
    """The logs of a log directory and its future logs."""

    __slots__ = ("clean", "directory", "future", "has_lowered_point", "logs", "unusable")

    def __init__(self, directory: LogDirectory, clean: bool) -> None:
        self.directory = directory
        self.clean = clean
        self.logs: dict[tuple[str, int], Log] = {}
        #: More than one of a partition, if a move was interrupted and requested again.
        self.future: list[Log] = []
        #: The offsets of logs that could not be opened, by checkpoint, for the next start.
        self.unusable: dict[tuple[str, int], dict[str, int]] = {}
        #: A recovery point on disk is above that of its log. It must be lowered there before
        #: anything is appended, or recovery after a crash would not read what is.
        self.has_lowered_point = False


class _Checkpoints(NamedTuple):
    recovery_points: Offsets
    log_starts: Offsets
    high_watermarks: Offsets
    compacted: Offsets

    def of(self, key: tuple[str, int]) -> dict[str, int]:
        """The offsets of one log by the names of the files that have them, but not that of the
        cleaner, which keeps what it does not know."""
        by_name = (
            (RECOVERY_POINT_CHECKPOINT, self.recovery_points),
            (LOG_START_CHECKPOINT, self.log_starts),
            (HIGH_WATERMARK_CHECKPOINT, self.high_watermarks),
        )
        return {name: offsets[key] for name, offsets in by_name if key in offsets}


_NO_CHECKPOINTS = _Checkpoints({}, {}, {}, {})


def load_directory(
    directory: LogDirectory,
    config_of: ConfigOf,
    opening: Opening,
    files: OpenFiles,
    deletions: Deletions,
    ignored: Container[str] = (),
) -> LoadedDirectory | None:
    """Open every log of the directory, but not the paths that are `ignored`: other names of logs.

    Returns None when the disk failed; it is offline then.

    May run in a worker thread, at the same time as for other directories. Without the clean
    shutdown file all logs are recovered, which reads everything above the recovery points. Deletes
    the clean shutdown file, so that recovery runs after a crash.
    """
    try:
        return _load(directory, config_of, opening, files, deletions, ignored)
    except OSError as error:
        directory.fail(error)
        return None


def _load(
    directory: LogDirectory,
    config_of: ConfigOf,
    opening: Opening,
    files: OpenFiles,
    deletions: Deletions,
    ignored: Container[str],
) -> LoadedDirectory:
    fs, root = directory.fs, directory.path
    marker = f"{root}/{CLEAN_SHUTDOWN_FILE}"
    clean = read_clean_shutdown(fs, marker) is not None
    if clean:
        # Durable before anything is written: if the file came back after a power failure, the next
        # start would not recover the logs.
        fs.remove(marker)
        fs.sync_directory(root)
    checkpoints = _Checkpoints(
        _offsets(directory, RECOVERY_POINT_CHECKPOINT),
        _offsets(directory, LOG_START_CHECKPOINT),
        _offsets(directory, HIGH_WATERMARK_CHECKPOINT),
        _offsets(directory, CLEANER_CHECKPOINT),
    )
    loaded = LoadedDirectory(directory, clean)
    dangling: list[str] = []
    listed = fs.list_directories(root, dangling)
    names = [name for name in listed if f"{root}/{name}" not in ignored]
    _note_dangling(loaded, dangling, checkpoints)
    if not clean and any(parse_partition_directory(name) for name in names):
        logger.warning("Log dir %s was not shut down cleanly, recovering its logs", root)
    progress = opening.progress
    planned = {} if progress is None else _plan(directory, names, clean, checkpoints, progress)
    for name in names:
        parsed = parse_partition_directory(name)
        if parsed is None:
            continue
        topic, partition, suffix = parsed
        path = f"{root}/{name}"
        if is_log_directory(fs, path):
            logger.error(
                "Ignoring %s: it has %s, so it is the log directory of another broker",
                path,
                META_PROPERTIES,
            )
            continue
        if suffix == DELETE_DIRECTORY_SUFFIX:
            deletions.add(path, 0, is_directory=True)
        elif suffix == STRAY_DIRECTORY_SUFFIX:
            if (found := of_directory(fs, path)) is not None:
                logger.warning("Log %s is set aside (%s): %s", path, found.reason, found.detail)
                directory.note_set_aside([found])
        else:
            read_before = 0 if progress is None else progress.recovered_bytes
            where = PartitionDirectory(directory, path, topic, partition, files)
            is_future = suffix == FUTURE_DIRECTORY_SUFFIX
            # The offsets of a future log are not in the checkpoints. What is there under its name
            # is from before, when this directory had the partition.
            known = _NO_CHECKPOINTS if is_future else checkpoints
            own = opening._replace(clean=clean)
            _open_log(loaded, where, config_of(topic), own, deletions, known, is_future=is_future)
            if progress is not None:
                progress.add_loaded(planned.get(name, 0), progress.recovered_bytes - read_before)
    return loaded


def _note_dangling(
    loaded: LoadedDirectory, names: Sequence[str], checkpoints: _Checkpoints
) -> None:
    """Partition directories that are links which cannot be used are logs that cannot be opened."""
    directory = loaded.directory
    for name in names:
        parsed = parse_partition_directory(name)
        if parsed is None or parsed[2]:
            continue
        path = f"{directory.path}/{name}"
        text = f"a symbolic link to {directory.fs.real_path(path)}, which {NOT_THERE}"
        if directory.note_unusable(path, FileNotFoundError(errno.ENOENT, text, path)):
            loaded.unusable[parsed[:2]] = checkpoints.of(parsed[:2])


def _open_log(
    loaded: LoadedDirectory,
    where: PartitionDirectory,
    config: LogConfig,
    opening: Opening,
    deletions: Deletions,
    known: _Checkpoints,
    *,
    is_future: bool,
) -> None:
    key = (where.topic, where.partition)
    opening = opening._replace(
        recovery_point=known.recovery_points.get(key),
        has_recovery_points=bool(known.recovery_points),
        log_start_offset=known.log_starts.get(key, 0),
        has_log_start=key in known.log_starts,
        compacted_to=known.compacted.get(key, -1),
    )
    try:
        log = open_log(where, config, opening, deletions)
    except OSError as error:
        if not loaded.directory.note_unusable(where.path, error):
            raise
        if not is_future:
            loaded.unusable[key] = known.of(key)
        return
    if log.recovery_point < known.recovery_points.get(key, 0):
        loaded.has_lowered_point = True
    if is_future:
        loaded.future.append(log)
        return
    high_watermark = known.high_watermarks.get(key)
    if high_watermark is None:
        log.offsets.committed_limit = log.log_end_offset
    log.update_high_watermark(high_watermark or 0)
    loaded.logs[key] = log


def _plan(
    directory: LogDirectory,
    names: Sequence[str],
    clean: bool,
    checkpoints: _Checkpoints,
    progress: DirectoryProgress,
) -> dict[str, int]:
    """The bytes that recovery will read of each log, by its directory; says so to `progress`."""
    planned: dict[str, int] = {}
    logs = 0
    for name in names:
        parsed = parse_partition_directory(name)
        if parsed is None or parsed[2] in (DELETE_DIRECTORY_SUFFIX, STRAY_DIRECTORY_SUFFIX):
            continue
        logs += 1
        if not clean:
            is_future = parsed[2] == FUTURE_DIRECTORY_SUFFIX
            point = None if is_future else checkpoints.recovery_points.get(parsed[:2])
            try:
                files = directory.fs.list_files(f"{directory.path}/{name}")
            except OSError as error:
                if error.errno not in UNUSABLE_FILE:
                    raise
                continue  # it will not be opened
            planned[name] = bytes_to_recover(files, point or 0)
    progress.recovery_bytes = sum(planned.values())
    progress.logs = logs
    return planned


def _offsets(directory: LogDirectory, name: str) -> Offsets:
    """What is known: a partition that is not in the file, or has an offset that cannot be one, has
    no entry. That is not the same as offset 0. Raises OSError."""
    path = f"{directory.path}/{name}"
    try:
        offsets = read_offset_checkpoint(directory.fs, path)
    except CorruptFile as damage:
        # Recovery reads the logs from their start then: slow, but correct.
        logger.warning("Ignoring checkpoint: %s", damage)
        return {}
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        logger.warning("Ignoring checkpoint: %s", error)
        return {}
    invalid = [key for key, offset in offsets.items() if not 0 <= offset <= _OFFSET_MAX]
    for topic, partition in invalid:
        offset = offsets.pop((topic, partition))
        logger.warning("Ignoring offset %d of %s-%d in %s", offset, topic, partition, path)
    return offsets
