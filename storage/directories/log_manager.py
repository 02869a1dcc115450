"""All logs of a broker, in one or more log directories (disks). Kafka's `LogManager`.

Everything here runs on the thread that owns the logs, except for what may run in a worker thread
according to its docstring. Nothing is scheduled here: the broker periodically flushes the logs of
`flushes_due` and calls `cleanup`, `checkpoint_*`, `purge`, `check_free_bytes` and
`remove_expired_producers`, and at the end `shutdown`, which saves the next start the recovery.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from ottla.protocol.steps import Steps
from ottla.storage.config import LogConfig
from ottla.storage.directories.directory_loader import ConfigOf, LoadedDirectory, load_directory
from ottla.storage.directories.known_directories import KnownDirectories
from ottla.storage.directories.log_directories import LogDirectories, MetaProperties, Placement
from ottla.storage.directories.offset_checkpoints import OffsetCheckpoints
from ottla.storage.directories.replaced_logs import (
    check_future,
    choose_current,
    is_of_other_topic,
    note_of_other_topic,
    note_of_parts,
    note_without_current,
    rename_to_current,
)
from ottla.storage.directories.retirements import (
    Retirements,
    forget_note,
    open_best,
    paths_set_aside,
)
from ottla.storage.directories.same_directory import second_names
from ottla.storage.errors import (
    InconsistentMetadata,
    LogDirectoryOffline,
    LogGone,
    OverlappingDirectories,
    StorageError,
)
from ottla.storage.files.checkpoints import write_partition_metadata
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.fs import FileSystem, RealFileSystem
from ottla.storage.files.layout import (
    FUTURE_DIRECTORY_SUFFIX,
    UniqueName,
    parse_partition_directory,
    partition_directory_name,
    unique_directory_name,
)
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import DEFAULT_LIMIT
from ottla.storage.files.set_aside import Note
from ottla.storage.log.flush import FlushLater, RunAll, close_logs
from ottla.storage.log.local_log import PartitionDirectory
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_state import DEFAULT_EXPIRATION_MS
from ottla.storage.recovery.load_progress import LoadProgress
from ottla.storage.recovery.recovery import Opening, open_log

logger = logging.getLogger("ottla.storage")

Key = tuple[str, int]


def _run_in_order(jobs: Sequence[Callable[[], None]]) -> None:
    for job in jobs:
        job()


class LogManager:
    """The logs of this broker by (topic, partition).

    It has many public methods because the broker accesses storage through it alone.
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
        """`min_free_bytes`: appends are rejected when a disk has less than this free."""
        self.fs = fs if fs is not None else RealFileSystem()
        self.default_config = default_config if default_config is not None else LogConfig()
        self.directories = LogDirectories(self.fs, directories, max_open_files)
        self.known_directories = KnownDirectories(self.fs, self.directories.all, unique_name)
        self.deletions = Deletions(self.fs)
        self.min_free_bytes = min_free_bytes
        self._producer_expiration_ms = producer_expiration_ms
        self._transaction_verification = transaction_verification
        self._unique_name = unique_name
        self._retirements = Retirements(self.fs, self.deletions, unique_name)
        self._logs: dict[Key, Log] = {}
        self._future: dict[Key, Log] = {}
        # Of partitions with logs of two topic ids, those that are not in `_logs` (`decide`).
        self._undecided: dict[Key, list[Log]] = {}
        #: Of logs that are opened from now on; None: appends flush as `flush.messages` requires.
        self.flush_later: FlushLater | None = None
        self._placement = Placement(self.directories, self._every_log)
        self._checkpoints = OffsetCheckpoints(self.directories, self._logs)
        # The directories of logs that could not be opened.
        self._unusable: dict[Key, LogDirectory] = {}
        #: Whether `load` found a directory without the clean shutdown file, which a crash, a power
        #: failure and a new disk have in common: acknowledged records may be missing.
        self.unclean_start = False

    # --- start and stop ----------------------------------------------------------------------

    def lock(self) -> None:
        """Lock the directories against other processes, Kafka's too. Raises DirectoryInUse."""
        self.directories.lock()

    def load(
        self,
        now_ms: int,
        *,
        config_of: ConfigOf | None = None,
        run_all: RunAll = _run_in_order,
        progress: LoadProgress | None = None,
    ) -> None:
        """Open all logs. Recovers those of directories that were not shut down cleanly.

        `config_of` returns the settings of a topic. `run_all` may open the directories in worker
        threads, one job each. Directories that cannot be read are offline afterwards. `progress`
        has the sums of logs and bytes while they are loaded.
        """
        opening = self._opening(now_ms, clean=False)
        settings = config_of if config_of is not None else (lambda _: self.default_config)
        found: list[LoadedDirectory] = []

        def job(directory: LogDirectory) -> None:
            files = self.directories.files_of(directory)
            part = None if progress is None else progress.of_directory(directory.path)
            own = opening._replace(progress=part)
            loaded = load_directory(directory, settings, own, files, self.deletions, second)
            if loaded is not None:
                found.append(loaded)

        second = self._second_names()
        run_all([partial(job, directory) for directory in self.directories.online()])
        self.unclean_start = not all(loaded.clean for loaded in found)
        found.sort(key=lambda loaded: self.directories.all.index(loaded.directory))
        for loaded in found:
            self._take(loaded, now_ms)
        for loaded in found:
            for key, offsets in loaded.unusable.items():
                self._checkpoints.keep(loaded.directory, key, offsets)
                self._unusable.setdefault(key, loaded.directory)
        # Their current logs may be in any directory.
        for loaded in found:
            self._take_future(loaded, now_ms)
        for directory in self.directories.online():
            directory.write_recovery_points = partial(
                self._checkpoints.write_recovery_points, directory
            )
        for loaded in found:
            if loaded.has_lowered_point:
                with suppress(StorageError):  # the directory is full, or offline
                    loaded.directory.write_recovery_points()

    def _second_names(self) -> dict[str, str]:
        for directory in self.directories.online():
            try:
                self.fs.make_directory(directory.path)
                directory.note_identity()
            except OSError as error:
                directory.fail(error)
        second = second_names(self.fs, self.directories.online())
        for path, used in second.items():
            logger.error(
                "Ignoring %s: it is the same directory as %s, which is used; remove the link or"
                " the mount",
                path,
                used,
            )
        return second

    def _take(self, loaded: LoadedDirectory, now_ms: int) -> None:
        for key, log in loaded.logs.items():
            other = self._logs.setdefault(key, log)
            if other is log:
                continue
            if is_of_other_topic(other, log):
                logger.error(
                    "%s is in two log directories with different topic ids, %s and %s",
                    log.name,
                    other.path,
                    log.path,
                )
                self._undecided.setdefault(key, []).append(log)
            else:
                self._keep_one(key, other, log, now_ms)

    def _keep_one(self, key: Key, one: Log, other: Log, now_ms: int) -> None:
        self._logs[key], rest, note = choose_current(one, other)
        self._retire(rest, now_ms, note)

    def _retire(self, log: Log, now_ms: int, note: Note | None) -> None:
        if note is not None:
            log_it = logger.error if note.needs_attention else logger.warning
            log_it("%s: Setting aside %s: %s", log.name, log.path, note.detail)
            note = note._replace(set_aside_ms=now_ms)
        with suppress(LogDirectoryOffline):  # then the next start finds it
            self._retirements.retire(log, now_ms, note)

    @property
    def undecided(self) -> list[str]:
        """The topics with logs of more than one topic id, for `decide`."""
        return sorted({topic for topic, _ in self._undecided})

    def decide(self, topic: str, topic_id: bytes | None, now_ms: int) -> None:
        """Keep the logs with the topic id of the cluster, and set aside those with another one.

        Without a topic id, or without a log that has it, the logs that end last are kept. Call it
        for each of `undecided` before the logs are used.
        """
        for key in [key for key in self._undecided if key[0] == topic]:
            logs = [self._logs[key], *self._undecided.pop(key)]
            kept = max(
                logs,
                key=lambda log: (topic_id in (None, log.topic_id), log.log_end_offset),
            )
            self._logs[key] = kept
            self._placement.changed()
            logs.remove(kept)
            for log in logs:
                if is_of_other_topic(kept, log):
                    self._retire(log, now_ms, note_of_other_topic(kept, log))
                else:
                    self._keep_one(key, self._logs[key], log, now_ms)

    def _take_future(self, loaded: LoadedDirectory, now_ms: int) -> None:
        """Take one future log of a partition. What interrupted moves have left is deleted if its
        records are in the current log, and set aside if not."""
        for log in loaded.future:
            key = (log.topic, log.partition)
            current = self._logs.get(key)
            if current is None and (place := self._may_be_in(key)) is not None:
                logger.warning(
                    "Ignoring future log %s until the next start: its current log may be in %s",
                    log.path,
                    place,
                )
                log.local.release()
                continue
            if current is None:
                note: Note | None = note_without_current(log)
            else:
                # Replacing the current log by one in its own directory would destroy both.
                note = check_future(current, log, self._future.get(key))
                if note is None:
                    self._future[key] = log
                    continue
            if note is not None and not note.needs_attention:
                logger.warning("Deleting future log %s, the rest of an interrupted move", log.path)
                note = None
            self._retire(log, now_ms, note)

    def shutdown(
        self,
        now_ms: int,
        broker_epoch: int = -1,
        *,
        run_all: RunAll = _run_in_order,
        forgets_missing: bool = True,
    ) -> None:
        """Close all logs, so that the next start needs no recovery.

        Syncing may take long, less with a `run_all` that runs in worker threads. Writes the clean
        shutdown file into the directories that are online and whose logs could all be closed.
        `forgets_missing`: whether somebody knows by now which directories are missing.
        """
        unclean = close_logs(self._every_log(), run_all)
        # A log that could not be opened may not have been recovered.
        unclean.update(each for each in self.directories.all if each.unusable)
        self.checkpoint_all()
        if forgets_missing:
            self.known_directories.forget_missing()
        self.directories.mark_clean(broker_epoch, unclean)
        self.directories.unlock()

    def abandon(self) -> None:
        """Close all descriptors and write nothing, as after a crash of the process.

        The next start recovers the logs, with every append that has returned.
        """
        for log in self._every_log():
            log.local.release()
        self.directories.unlock()

    # --- identity ----------------------------------------------------------------------------

    def read_meta_properties(self) -> MetaProperties:
        """Broker id and cluster id of the directories; None for what none of them contains.

        Raises InconsistentMetadata when they differ, CorruptFile.
        """
        return self.directories.read_meta_properties()

    def has_logs(self) -> bool:
        """Whether a directory has logs, which may not be open yet."""
        return self.directories.have_logs()

    def write_meta_properties(self, broker_id: int, cluster_id: str) -> None:
        """Write `meta.properties` into directories where it is missing or different. Synced.

        Before that, logs an error for each directory of the last start that is missing.
        """
        self.known_directories.check()
        self.directories.write_meta_properties(MetaProperties(broker_id, cluster_id))

    # --- logs --------------------------------------------------------------------------------

    def logs(self) -> list[Log]:
        """All current logs, without the future logs."""
        return list(self._logs.values())

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, or None. The methods of a log in an offline directory raise."""
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
        """The log. A new one is created in the preferred directory, or that with the fewest logs.

        `is_new`: the partition was just created. Otherwise no log is created while a directory is
        offline, because the log may be there, nor beside one that could not be opened. Raises
        LogDirectoryOffline, DiskFull, and InconsistentMetadata when the existing log has another
        topic id.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is None:
            place = self._may_be_in(key)
            if place is not None and (key in self._unusable or not is_new):
                raise LogDirectoryOffline(place, f"{topic}-{partition} may be there")
            directory = self._placement.choose(key)
            path = f"{directory.path}/{partition_directory_name(topic, partition)}"
            self._retirements.finish_all_of(topic, partition)
            self._checkpoints.forget(directory, key)
            log = self._create(directory, path, key, config, now_ms)
            if self.known_directories.missing and not is_new:
                logger.warning(
                    "%s begins empty in %s: its log may have been in %s, which is missing",
                    log.name,
                    directory.path,
                    ", ".join(self.known_directories.missing),
                )
            self._placement.created(key, directory)
            self._logs[key] = log
        log.log_directory.check_online()
        if log.is_offline:
            raise LogGone(log.log_directory.path, log.path)
        if topic_id is not None:
            self.assign_topic_id(log, topic_id)
        return log

    def _may_be_in(self, key: Key) -> str | None:
        """The log directory with a log of the partition that could not be opened; else one that is
        offline, where it may be."""
        unusable = self._unusable.get(key)
        offline = self.offline_directories
        return unusable.path if unusable is not None else next(iter(offline), None)

    def _create(
        self,
        directory: LogDirectory,
        path: str,
        key: Key,
        config: LogConfig | None,
        now_ms: int,
    ) -> Log:
        opening = self._opening(now_ms, clean=True)
        existed = self.fs.exists(path)
        try:
            self.fs.make_directory(path)
            files = self.directories.files_of(directory)
            chosen = config if config is not None else self.default_config
            partition_directory = PartitionDirectory(directory, path, *key, files)
            return open_log(partition_directory, chosen, opening, self.deletions)
        except OSError as error:
            if not existed:  # the next attempt may choose another log directory
                with suppress(OSError):
                    self.fs.remove_tree(path)
            raise directory.write_failed(error) from error

    def _opening(self, now_ms: int, *, clean: bool) -> Opening:
        return Opening(
            clean=clean,
            recovery_point=0,
            log_start_offset=0,
            now_ms=now_ms,
            producer_expiration_ms=self._producer_expiration_ms,
            verification_enabled=self._transaction_verification,
            flush_later=self.flush_later,
        )

    def assign_topic_id(self, log: Log, topic_id: bytes) -> None:
        """Write the topic id of a log that has none yet.

        Raises InconsistentMetadata when the log has another one, LogDirectoryOffline, DiskFull.
        """
        if log.topic_id is None:
            try:
                write_partition_metadata(self.fs, log.local.directory.metadata_path, topic_id)
            except OSError as error:
                raise log.log_directory.write_failed(error) from error
            log.local.directory.changes += 1
            log.topic_id = topic_id
        elif log.topic_id != topic_id:
            raise InconsistentMetadata(
                f"{log.path} belongs to topic id {log.topic_id.hex()}, not to {topic_id.hex()}"
            )

    def delete_async(
        self, topic: str, partition: int, now_ms: int = 0, note: Note | None = None
    ) -> None:
        """Remove the log and rename its directory; `purge` deletes it later.

        With a note the log is set aside: renamed to `-stray` and kept. Slices stay readable. Does
        nothing when there is no such log. Raises LogDirectoryOffline. Without space or memory for
        the rename it is retried, and the partition is not created again before. A future log whose
        directory has failed is left there: it is no replica. A log that could not be opened is left
        there as well, with LogDirectoryOffline.
        """
        key = (topic, partition)
        with suppress(LogDirectoryOffline):
            self.abandon_future(topic, partition, now_ms)
        log = self._logs.pop(key, None)
        if log is not None:
            self._placement.changed()
            self._retirements.retire(log, now_ms, note)
        elif key in self._unusable:
            raise LogDirectoryOffline(self._unusable[key].path, f"{topic}-{partition} may be there")

    def has_set_aside(self, topic: str, partition: int) -> bool:
        """Whether `open_set_aside` may find a log that is to be taken back. It is older than one
        that could not be opened."""
        return (topic, partition) not in self._unusable and bool(
            paths_set_aside(self.directories.online(), topic, partition)
        )

    def open_set_aside(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        now_ms: int,
    ) -> Log | None:
        """Open and recover the best log with this topic id that was set aside, for `take_back`.

        May run in a worker thread. Raises StorageError.
        """
        opening = self._opening(now_ms, clean=False)
        return open_best(
            self.directories.online(),
            topic,
            partition,
            topic_id,
            lambda directory: open_log(directory, config, opening, self.deletions),
        )

    def take_back(self, log: Log, now_ms: int) -> None:
        """Make a log of `open_set_aside` the current one. A current log without records is
        deleted. Raises StorageError; the log stays set aside then.
        """
        key = (log.topic, log.partition)
        current = self._logs.get(key)
        if current is not None:
            assert current.log_end_offset == 0, "it has no records"
            self.delete_async(*key, now_ms)
        self._retirements.finish_all_of(*key)
        self._checkpoints.forget(log.log_directory, key)
        set_aside_path = log.path
        rename_to_current(log)
        forget_note(log, set_aside_path)
        self._placement.changed()
        self._logs[key] = log

    # --- moving between directories ----------------------------------------------------------

    def prefer_directory(self, topic: str, partition: int, directory: str) -> None:
        """Set the directory in which the partition will be created. Raises ValueError."""
        self._placement.prefer((topic, partition), directory)

    def get_future(self, topic: str, partition: int) -> Log | None:
        """The future log: the copy of a log that is being moved to another directory."""
        return self._future.get((topic, partition))

    def create_future(self, topic: str, partition: int, directory: str, now_ms: int) -> Log:
        """Create a future log in `directory`, to be filled by `append_as_follower`.

        Returns the existing future log if it is in that directory. Raises ValueError when the
        current log is there, LogDirectoryOffline, DiskFull.
        """
        key = (topic, partition)
        target = self.directories.find(directory)
        target.check_online()
        current = self._logs[key]
        if self._is_same(current.log_directory.path, target.path):
            raise ValueError(f"{current.name} is in {directory} already")
        path = f"{target.path}/{partition_directory_name(topic, partition)}"
        if path in target.unusable and self.fs.exists(path):
            raise LogDirectoryOffline(target.path, f"{path} is there, and cannot be opened")
        future = self._future.get(key)
        if future is not None and future.log_directory is target:
            return future
        if future is not None:
            self.abandon_future(topic, partition, now_ms)
        name = unique_directory_name(topic, partition, self._unique_name(), FUTURE_DIRECTORY_SUFFIX)
        path, log = f"{target.path}/{name}", None
        try:
            log = self._create(target, path, key, current.config, now_ms)
            current.begin_copy(log, now_ms)
        except StorageError:
            if log is not None:
                log.local.release()
            with suppress(OSError):
                self.fs.remove_tree(path)  # the next attempt has another name
            raise
        self._future[key] = log
        self._placement.changed()
        return log

    def abandon_future(self, topic: str, partition: int, now_ms: int) -> None:
        """Delete the future log, if there is one."""
        future = self._future.pop((topic, partition), None)
        if future is not None:
            self._placement.changed()
            self._retirements.retire(future, now_ms)

    def replace_current_with_future(self, topic: str, partition: int, now_ms: int) -> Log:
        """Make the future log the current one and delete the old one. Returns the log.

        Raises ValueError when the future log has not caught up, OverlappingDirectories when both
        are one directory, and for its directory LogDirectoryOffline, DiskFull, ResourceExhausted;
        the current log stays current then.
        """
        key = (topic, partition)
        current, future = self._logs[key], self._future[key]
        assert current.log_directory is not future.log_directory
        if future.log_end_offset != current.log_end_offset:
            raise ValueError(
                f"{current.name}: the future log ends at {future.log_end_offset}, the current"
                f" log at {current.log_end_offset}"
            )
        if self._is_same(current.path, future.path):
            raise OverlappingDirectories(f"{current.path} and {future.path} are one directory")
        # Without the offsets that the partition had when it was in this directory before.
        self._checkpoints.forget(future.log_directory, key)
        if current.topic_id is not None:
            self.assign_topic_id(future, current.topic_id)
        self._retirements.finish_all_of(topic, partition)
        rename_to_current(future)
        future.update_high_watermark(current.high_watermark)
        self._logs[key] = self._future.pop(key)
        self._placement.changed()
        # The move is complete even if a directory fails: `load` finds out which log is newer.
        if current.log_start_offset < current.local_log_start_offset:
            future.offsets.lower_log_start(current.log_start_offset)
        with suppress(StorageError):  # What was deleted stays deleted, also after a crash.
            future.truncator.delete_records_before(
                min(current.log_start_offset, future.high_watermark)
            )
            self._checkpoints.write_log_starts(future.log_directory)
        with suppress(LogDirectoryOffline):
            self._retirements.retire(current, now_ms, note_of_parts(current, future.path))
        return future

    def _is_same(self, path: str, other: str) -> bool:
        """Whether two paths name one directory: deleting the one would delete the other."""
        if path == other:
            return True
        try:
            return self.fs.identity(path) == self.fs.identity(other)
        except OSError:
            return False  # the next operation there fails

    # --- periodic work -----------------------------------------------------------------------

    def flushes_due(self, now_ms: int) -> list[Log]:
        """The logs to flush; `LogFlusher.begin_flush` does it in a worker thread.

        Those whose required flush failed, those with unflushed records last flushed `flush.ms` or
        longer ago, those with an inactive segment above the recovery point: recovery would read it.
        """
        # Asked every second: first what most logs answer with no.
        return [
            log
            for log in self._logs.values()
            if (offsets := log.offsets).recovery_point < offsets.log_end_offset
            and (
                offsets.flush_required
                or offsets.recovery_point < log.local.active.base_offset
                or now_ms - log.flusher.last_flushed_ms >= log.config.flush_ms
            )
            and not log.is_offline
        ]

    def cleanup(self, now_ms: int) -> Steps[int]:
        """Apply retention to all logs, which renames files. Returns the number of segments."""
        deleted = 0
        for log in self._online_logs():
            yield
            if log.local.closed:
                continue  # deleted meanwhile
            try:
                deleted += yield from log.retention.delete_old_segments(now_ms)
            except StorageError as error:
                logger.error("%s: Retention failed, will retry: %s", log.name, error)
        return deleted

    def remove_expired_producers(self, now_ms: int) -> Steps[int]:
        """Remove producers idle for `producer.id.expiration.ms`. Returns their number."""
        removed = 0
        for log in self._online_logs():
            yield
            removed += yield from log.producer_state.remove_expired(now_ms)
            log.verifications.remove_expired(now_ms, self._producer_expiration_ms)
        return removed

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """Change `producer.id.expiration.ms`."""
        self._producer_expiration_ms = expiration_ms
        for log in self._every_log():
            log.producer_state.expiration_ms = expiration_ms

    def set_transaction_verification(self, *, enabled: bool) -> None:
        """Change `transaction.partition.verification.enable`."""
        self._transaction_verification = enabled
        for log in self._every_log():
            log.verifications.enabled = enabled

    def purge(self, now_ms: int) -> int:
        """Delete files and directories after their delay. May run in a worker thread."""
        return self.deletions.purge(now_ms)

    def measure_free_bytes(self) -> list[tuple[LogDirectory, int | OSError]]:
        """The free bytes of every disk, for `update_free_bytes`. May run in a worker thread."""
        return [(directory, directory.free_bytes()) for directory in self.directories.all]

    def update_free_bytes(self, found: list[tuple[LogDirectory, int | OSError]]) -> None:
        """Reject appends to disks with less than `min_free_bytes` free, resume others.

        Retries what lacked space or memory: directories of deleted logs that keep their names.
        """
        for directory, free in found:
            directory.update_free_bytes(free, self.min_free_bytes)
        self._retirements.retry()

    def find_gone(self) -> None:
        """Look for logs whose directories somebody has deleted or moved, for `confirm_gone`. May
        run in a worker thread."""
        paths: dict[LogDirectory, list[str]] = {each: [] for each in self.directories.online()}
        for log in self.logs():
            if log.log_directory in paths:
                paths[log.log_directory].append(log.path)
        for directory, its in paths.items():
            directory.find_suspects(its)

    def confirm_gone(self) -> Steps[list[Log]]:
        """The logs that are gone since the last call, among those that an operation or `find_gone`
        has missed. On the thread that owns the logs, so that none of them is renamed meanwhile.

        May pause between two logs."""
        found: list[Log] = []
        for directory in self.directories.online():
            suspects, directory.suspects = directory.suspects, {}
            for path in tuple(suspects):  # a worker thread may add one at this moment
                yield
                log = self._log_at(path)
                if log is None or log.is_offline or not directory.lacks(path):
                    continue
                directory.gone.add(path)
                found.append(log)
                logger.error(
                    "The directory %s of a log was deleted or moved: this replica is offline, the"
                    " others of the disk are served. To bring it back, stop the broker, put the"
                    " directory back and start the broker",
                    log.path,
                )
        return found

    def _log_at(self, path: str) -> Log | None:
        parsed = parse_partition_directory(os.path.basename(path))
        log = None if parsed is None else self._logs.get(parsed[:2])
        return log if log is not None and log.path == path else None

    def find_restored(self) -> list[tuple[LogDirectory, set[str]]]:
        """The paths no longer set aside, for `forget_restored`. May run in a worker thread."""
        return [(each, each.find_restored()) for each in self.directories.all if each.set_aside]

    def forget_restored(self, found: list[tuple[LogDirectory, set[str]]]) -> None:
        """The faults and metrics do not show it any more."""
        for directory, gone in found:
            directory.forget_restored(gone)

    def check_free_bytes(self) -> None:
        """`measure_free_bytes` and `update_free_bytes` on this thread."""
        self.update_free_bytes(self.measure_free_bytes())

    def checkpoint_recovery_points(self) -> None:
        """Write `log-start-offset-checkpoint`, then `recovery-point-offset-checkpoint`. May run
        in a worker thread."""
        self._checkpoints.write_recovery_points()

    def checkpoint_high_watermarks(self) -> None:
        """Write `replication-offset-checkpoint`. May run in a worker thread."""
        self._checkpoints.write_high_watermarks()

    def checkpoint_log_starts(self) -> None:
        """Write `log-start-offset-checkpoint`. May run in a worker thread."""
        self._checkpoints.write_log_starts()

    def checkpoint_all(self) -> None:
        """Write all three checkpoints. May run in a worker thread."""
        self.checkpoint_recovery_points()  # with the log starts
        self.checkpoint_high_watermarks()

    # --- directories -------------------------------------------------------------------------

    @property
    def offline_directories(self) -> list[str]:
        """The paths of the log directories that are offline."""
        return [d.path for d in self.directories.all if d.is_offline]

    @property
    def unusable_logs(self) -> dict[str, str]:
        """The paths of logs that could not be opened because of one of their files, and why."""
        return {k: v for each in self.directories.all for k, v in each.unusable.items()}

    @property
    def gone_logs(self) -> list[str]:
        """The paths of the logs whose directories somebody has deleted or moved."""
        return [path for directory in self.directories.all for path in sorted(directory.gone)]

    def is_gone(self, topic: str, partition: int) -> bool:
        """Whether the directory of the log was deleted or moved: nothing of it is left to lose."""
        log = self._logs.get((topic, partition))
        return log is not None and log.path in log.log_directory.gone

    def logs_in(self, directory: str) -> list[Log]:
        """The logs of one log directory, future logs included. Raises ValueError."""
        wanted = self.directories.find(directory)
        return [log for log in self._every_log() if log.log_directory is wanted]

    def _every_log(self) -> list[Log]:
        undecided = chain.from_iterable(self._undecided.values())
        return [*self._logs.values(), *self._future.values(), *undecided]

    def _online_logs(self) -> list[Log]:
        return [log for log in self._logs.values() if not log.is_offline]
