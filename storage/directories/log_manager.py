"""All logs of a broker, over one or more log directories (disks).

Everything here runs on the thread that owns the logs, but for what says that it may run in a worker
thread. Nothing is done by itself: the broker calls, now and then,

- `flush_dirty`, `cleanup`, `checkpoint_*`, `purge`, `check_room`, `remove_expired_producers`
- and at the end `shutdown`, which is what makes the next start a quick one.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

from ottla.storage.config import LogConfig
from ottla.storage.directories.directory_loader import ConfigOf, LoadedDirectory, load_directory
from ottla.storage.directories.log_directories import LogDirectories
from ottla.storage.directories.meta_properties import MetaProperties
from ottla.storage.errors import InconsistentMetadata, LogDirectoryOffline, StorageError
from ottla.storage.files.checkpoints import Offsets, write_partition_metadata
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import FileSystem, RealFileSystem
from ottla.storage.files.layout import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_DIRECTORY_SUFFIX,
    UniqueName,
    partition_directory_name,
    unique_directory_name,
)
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import DEFAULT_LIMIT
from ottla.storage.log.batch_scan import DamagedLog
from ottla.storage.log.closing import RunAll, close_logs
from ottla.storage.log.log import Log
from ottla.storage.log.partition_directory import PartitionDirectory
from ottla.storage.producer.producer_state import DEFAULT_EXPIRATION_MS
from ottla.storage.recovery.recovery import Opening, open_log

logger = logging.getLogger("ottla.storage")

Key = tuple[str, int]


def _one_after_the_other(jobs: Sequence[Callable[[], None]]) -> None:
    for job in jobs:
        job()


def _recovery_point(log: Log) -> int:
    return log.recovery_point


class LogManager:
    """The logs of this broker by (topic, partition).

    More public methods than a class should have: it is the one way into storage.
    """

    def __init__(
        self,
        directories: Sequence[str | os.PathLike[str]],
        default_config: LogConfig | None = None,
        fs: FileSystem | None = None,
        *,
        min_free_bytes: int = 0,
        max_open_files: int = DEFAULT_LIMIT,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        transaction_verification: bool = False,
        unique_name: UniqueName = lambda: os.urandom(16).hex(),
    ) -> None:
        """`min_free_bytes`: appends stop when a disk has less room than this left."""
        self.fs = fs if fs is not None else RealFileSystem()
        self.default_config = default_config if default_config is not None else LogConfig()
        self.directories = LogDirectories(self.fs, directories, max_open_files)
        self.deletions = Deletions(self.fs)
        self.min_free_bytes = min_free_bytes
        self._producer_expiration_ms = producer_expiration_ms
        self._transaction_verification = transaction_verification
        self._unique_name = unique_name
        self._logs: dict[Key, Log] = {}
        self._future: dict[Key, Log] = {}
        # Where a partition is to be made that does not exist yet (AlterReplicaLogDirs).
        self._preferred: dict[Key, str] = {}
        # Two threads that write one checkpoint would move each other's file away, and the older
        # offsets could win.
        self._checkpoint_lock = Lock()

    # --- start and stop ----------------------------------------------------------------------

    def lock(self) -> None:
        """Keeps other processes, Kafka too, out of the directories. Raises DirectoryInUse."""
        self.directories.lock()

    def load(
        self,
        now_ms: int,
        *,
        config_of: ConfigOf | None = None,
        run_all: RunAll = _one_after_the_other,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Opens all logs, recovering those of directories that were not closed cleanly.

        `config_of` gives a topic its settings. `run_all` may open directories in worker threads,
        one job each. Directories that cannot be read are offline afterwards, together with the logs
        they may hold.
        """
        opening = Opening(
            clean=False,
            recovery_point=0,
            log_start_offset=0,
            now_ms=now_ms,
            producer_expiration_ms=self._producer_expiration_ms,
            verification_enabled=self._transaction_verification,
            progress=progress,
        )
        settings = config_of if config_of is not None else (lambda _: self.default_config)
        found: list[LoadedDirectory] = []

        def job(directory: LogDirectory) -> None:
            try:
                self.fs.make_directory(directory.path)
            except OSError as error:
                directory.fail(error)
                return
            files = self.directories.files_of(directory)
            loaded = load_directory(directory, settings, opening, files, self.deletions)
            if loaded is not None:
                found.append(loaded)

        run_all([partial(job, directory) for directory in self.directories.online()])
        for loaded in found:
            self._take(loaded)
        for directory in self.directories.online():
            directory.write_recovery_points = partial(
                self._checkpoint, RECOVERY_POINT_CHECKPOINT, _recovery_point, directory
            )

    def _take(self, loaded: LoadedDirectory) -> None:
        for key, log in loaded.logs.items():
            other = self._logs.get(key)
            if other is not None:
                raise InconsistentMetadata(
                    f"{log.name} is in two log directories: {other.path} and {log.path};"
                    " move one of them away"
                )
            self._logs[key] = log
        for key, log in loaded.future.items():
            if key not in self._logs:
                logger.warning("%s: a copy without its original, not used", log.path)
                log.release()
                continue
            self._future[key] = log

    def shutdown(
        self, now_ms: int, broker_epoch: int = -1, *, run_all: RunAll = _one_after_the_other
    ) -> None:
        """Closes all logs, so that the next start has nothing to recover. Syncs: may take long,
        less with a `run_all` that syncs in worker threads.

        Directories in which everything could be written get the marker of a clean shutdown.
        """
        close_logs([*self._logs.values(), *self._future.values()], run_all)
        self.checkpoint_all()
        self.directories.mark_clean(broker_epoch)
        self.directories.unlock()

    def abandon(self) -> None:
        """Gives up all descriptors and writes nothing: what a crash of the process leaves. The
        next start has to recover, and finds every append that the system was handed."""
        for log in (*self._logs.values(), *self._future.values()):
            log.release()
        self.directories.unlock()

    # --- identity ----------------------------------------------------------------------------

    def read_meta_properties(self) -> MetaProperties:
        """What the directories say about broker and cluster; None for what none of them says.

        Raises InconsistentMetadata when they differ, CorruptFile.
        """
        return self.directories.read_meta_properties()

    def write_meta_properties(self, broker_id: int, cluster_id: str) -> None:
        """Writes `meta.properties` into directories that say something else, or nothing. Synced."""
        self.directories.write_meta_properties(MetaProperties(broker_id, cluster_id))

    # --- logs --------------------------------------------------------------------------------

    def logs(self) -> list[Log]:
        """All logs, without the copies on their way between directories."""
        return list(self._logs.values())

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, or None. One on a failed disk is still given; its methods raise."""
        return self._logs.get((topic, partition))

    def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: bytes | None = None,
        config: LogConfig | None = None,
        now_ms: int,
        is_new: bool = False,
    ) -> Log:
        """The log; a new one is made in the directory with the fewest logs (or the preferred one).

        `is_new`: the partition was created just now. Otherwise none is made while a directory is
        offline, because the log may be in there. Raises LogDirectoryOffline, InconsistentMetadata
        when there is a log of another topic with the same name.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is None:
            offline = self.offline_directories
            if offline and not is_new:
                raise LogDirectoryOffline(offline[0], f"{topic}-{partition} may be in there")
            directory = self._place(key)
            path = f"{directory.path}/{partition_directory_name(topic, partition)}"
            log = self._create(directory, path, key, config, now_ms)
            self._preferred.pop(key, None)
            self._logs[key] = log
        log.log_directory.check_online()
        if topic_id is not None:
            self.assign_topic_id(log, topic_id)
        return log

    def _create(
        self,
        directory: LogDirectory,
        path: str,
        key: Key,
        config: LogConfig | None,
        now_ms: int,
    ) -> Log:
        opening = Opening(
            clean=True,
            recovery_point=0,
            log_start_offset=0,
            now_ms=now_ms,
            producer_expiration_ms=self._producer_expiration_ms,
            verification_enabled=self._transaction_verification,
        )
        try:
            self.fs.make_directory(path)
            files = self.directories.files_of(directory)
            chosen = config if config is not None else self.default_config
            partition_directory = PartitionDirectory(directory, path, *key, files)
            return open_log(partition_directory, chosen, opening, self.deletions)
        except OSError as error:
            raise directory.refused(error) from error

    def assign_topic_id(self, log: Log, topic_id: bytes) -> None:
        """Writes the topic id of a log that has none yet.

        Raises InconsistentMetadata when the log has another one, LogDirectoryOffline, DiskFull.
        """
        if log.topic_id is None:
            try:
                write_partition_metadata(self.fs, log.metadata_path, topic_id)
            except OSError as error:
                raise log.log_directory.refused(error) from error
            log.topic_id = topic_id
        elif log.topic_id != topic_id:
            raise InconsistentMetadata(
                f"{log.path} belongs to topic id {log.topic_id.hex()}, not {topic_id.hex()}"
            )

    def _place(self, key: Key) -> LogDirectory:
        if len(online := self.directories.online()) == 1:
            return online[0]  # thousands of logs need not be counted for each new one
        logs = (*self._logs.values(), *self._future.values())
        used = Counter(log.log_directory.path for log in logs)
        return self.directories.choose(used, self._preferred.get(key))

    def delete_async(
        self, topic: str, partition: int, now_ms: int = 0, *, stray: bool = False
    ) -> None:
        """Takes the log out of service and renames its directory; `purge` deletes it later.

        With `stray` it is kept, under a name that says so. Slices stay readable. Does nothing when
        there is no such log. Raises LogDirectoryOffline.
        """
        key = (topic, partition)
        for logs in (self._logs, self._future):
            log = logs.pop(key, None)
            if log is not None:
                self._retire(log, now_ms, stray=stray)

    def _retire(self, log: Log, now_ms: int, *, stray: bool = False) -> None:
        log.release()
        suffix = STRAY_DIRECTORY_SUFFIX if stray else DELETE_DIRECTORY_SUFFIX
        name = unique_directory_name(log.topic, log.partition, self._unique_name(), suffix)
        path = f"{log.log_directory.path}/{name}"
        try:
            log.log_directory.check_online()
            self.fs.replace(log.path, path)
            log.move_to(path)
        except OSError as error:
            raise log.log_directory.fail(error) from error
        if not stray:
            due_ms = now_ms + log.config.file_delete_delay_ms
            self.deletions.add(path, due_ms, is_directory=True)

    # --- moving between directories ----------------------------------------------------------

    def prefer_directory(self, topic: str, partition: int, directory: str) -> None:
        """Where the partition is to be made when it does not exist yet."""
        self._preferred[topic, partition] = self.directories.find(directory).path

    def get_future(self, topic: str, partition: int) -> Log | None:
        """The copy of a log on its way into another directory."""
        return self._future.get((topic, partition))

    def create_future(self, topic: str, partition: int, directory: str, now_ms: int) -> Log:
        """Begins a copy of the log in `directory`; fill it with `append_as_follower`.

        The copy that is there is given when it is in that directory already. Raises ValueError when
        the log itself is, LogDirectoryOffline.
        """
        key = (topic, partition)
        target = self.directories.find(directory)
        target.check_online()
        current = self._logs[key]
        if current.log_directory is target:
            raise ValueError(f"{current.name} is in {directory} already")
        future = self._future.get(key)
        if future is not None and future.log_directory is target:
            return future
        if future is not None:
            self.abandon_future(topic, partition, now_ms)
        name = unique_directory_name(topic, partition, self._unique_name(), FUTURE_DIRECTORY_SUFFIX)
        log = self._create(target, f"{target.path}/{name}", key, current.config, now_ms)
        log.truncate_fully_and_start_at(current.log_start_offset)
        self._future[key] = log
        return log

    def abandon_future(self, topic: str, partition: int, now_ms: int) -> None:
        """Gives the copy up."""
        future = self._future.pop((topic, partition), None)
        if future is not None:
            self._retire(future, now_ms)

    def replace_current_with_future(self, topic: str, partition: int, now_ms: int) -> Log:
        """The copy has caught up: it becomes the log, and the old one is deleted. Gives the log."""
        key = (topic, partition)
        current, future = self._logs[key], self._future[key]
        if future.log_end_offset != current.log_end_offset:
            raise ValueError(
                f"the copy of {current.name} ends at {future.log_end_offset},"
                f" not at {current.log_end_offset}"
            )
        path = f"{future.log_directory.path}/{partition_directory_name(topic, partition)}"
        try:
            if current.topic_id is not None:
                self.assign_topic_id(future, current.topic_id)
            self.fs.replace(future.path, path)
            future.move_to(path)
        except OSError as error:
            raise future.log_directory.fail(error) from error
        future.update_high_watermark(current.high_watermark)
        self._logs[key] = self._future.pop(key)
        self._retire(current, now_ms)
        return future

    # --- what the broker calls now and then --------------------------------------------------

    def flush_dirty(self, now_ms: int) -> int:
        """Flushes, here and now, the logs of `flushes_due`; gives their number."""
        due = self.flushes_due(now_ms)
        for log in due:
            log.flush(now_ms)
        return len(due)

    def flushes_due(self, now_ms: int) -> list[Log]:
        """The logs that should be flushed: see `begin_flush` of each for doing it in a worker.

        Those with unflushed records that were last flushed `flush.ms` or longer ago, and those with
        a closed segment that is not on disk yet: it would be read again after a crash.
        """
        return [
            log
            for log in self._online_logs()
            if log.recovery_point < log.log_end_offset
            and (
                log.recovery_point < log.active_segment.base_offset
                or now_ms - log.last_flushed_ms >= log.config.flush_ms
            )
        ]

    def cleanup(self, now_ms: int) -> int:
        """Retention in all logs: gives the number of segments deleted. Renames files only."""
        deleted = 0
        for log in self._online_logs():
            try:
                deleted += log.delete_old_segments(now_ms)
            except (StorageError, DamagedLog) as error:
                logger.error("%s: retention failed: %s", log.name, error)
        return deleted

    def remove_expired_producers(self, now_ms: int) -> int:
        """Forgets producers that have been idle for `producer.id.expiration.ms`."""
        removed = 0
        for log in self._online_logs():
            removed += log.producer_state.remove_expired(now_ms)
            log.verifications.remove_expired(now_ms, self._producer_expiration_ms)
        return removed

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """`producer.id.expiration.ms` has another value now."""
        self._producer_expiration_ms = expiration_ms
        for log in (*self._logs.values(), *self._future.values()):
            log.producer_state.expiration_ms = expiration_ms

    def purge(self, now_ms: int) -> int:
        """Deletes files and directories whose delay has passed. May run in a worker thread."""
        return self.deletions.purge(now_ms)

    def free_room(self) -> list[tuple[LogDirectory, int | OSError]]:
        """Asks every disk for its free room, for `note_room`. May run in a worker thread."""
        return [(directory, directory.free_bytes()) for directory in self.directories.all]

    def note_room(self, found: list[tuple[LogDirectory, int | OSError]]) -> None:
        """Stops appends to disks with less than `min_free_bytes` left, allows them to others."""
        for directory, free in found:
            directory.note_room(free, self.min_free_bytes)

    def check_room(self) -> None:
        """`free_room` and `note_room`, here and now."""
        self.note_room(self.free_room())

    def checkpoint_recovery_points(self) -> None:
        """Writes `recovery-point-offset-checkpoint`. May run in a worker thread."""
        self._checkpoint(RECOVERY_POINT_CHECKPOINT, _recovery_point)

    def checkpoint_high_watermarks(self) -> None:
        """Writes `replication-offset-checkpoint`. May run in a worker thread."""
        self._checkpoint(HIGH_WATERMARK_CHECKPOINT, lambda log: log.high_watermark)

    def checkpoint_log_starts(self) -> None:
        """Writes `log-start-offset-checkpoint`: where the start is not that of a segment.

        May run in a worker thread.
        """

        def start(log: Log) -> int | None:
            offset = log.log_start_offset
            return offset if offset > log.segments.first.base_offset else None

        self._checkpoint(LOG_START_CHECKPOINT, start)

    def checkpoint_all(self) -> None:
        """All three. May run in a worker thread."""
        self.checkpoint_recovery_points()
        self.checkpoint_log_starts()
        self.checkpoint_high_watermarks()

    def _checkpoint(
        self,
        name: str,
        offset_of: Callable[[Log], int | None],
        only: LogDirectory | None = None,
    ) -> None:
        with self._checkpoint_lock:
            chosen = self.directories.online() if only is None else [only]
            by_directory: dict[str, Offsets] = {directory.path: {} for directory in chosen}
            for key, log in list(self._logs.items()):
                offset = offset_of(log)
                offsets = by_directory.get(log.log_directory.path)
                if offset is not None and offsets is not None:
                    offsets[key] = offset
            self.directories.write_checkpoint(name, by_directory)

    # --- directories -------------------------------------------------------------------------

    @property
    def offline_directories(self) -> list[str]:
        """Log directories whose disk has failed."""
        return [d.path for d in self.directories.all if d.is_offline]

    def logs_in(self, directory: str) -> list[Log]:
        """The logs of one log directory, copies on their way included."""
        wanted = self.directories.find(directory)
        every = (*self._logs.values(), *self._future.values())
        return [log for log in every if log.log_directory is wanted]

    def _online_logs(self) -> list[Log]:
        return [log for log in self._logs.values() if not log.log_directory.is_offline]
