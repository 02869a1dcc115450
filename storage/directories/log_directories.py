"""The log directories (disks) of a broker: locks, properties, checkpoints, placement of logs.

`.lock` admits one broker per log directory. Kafka uses the same lock, and excludes this broker by
it. It is a POSIX lock on the file, as Java's, and belongs to the process: a second one of the same
process succeeds, and the process loses it when it closes any descriptor of the file. So a table
records the directories that this process has locked, by device and inode, and the file is not
opened again. Java has such a table, too. A lock of the directory itself (`flock`) excludes another
broker after somebody has deleted the file.

`meta.properties` names the broker and the cluster of a log directory. Version 0 is ZooKeeper mode.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from ottla.storage.errors import (
    CorruptFile,
    DirectoryInUse,
    InconsistentMetadata,
    LogDirectoryOffline,
    StorageError,
)
from ottla.storage.files.checkpoints import (
    Offsets,
    read_properties,
    write_clean_shutdown,
    write_offset_checkpoint,
    write_properties,
)
from ottla.storage.files.fs import CREATE, FILE_MODE, FileSystem
from ottla.storage.files.layout import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    META_PROPERTIES,
    parse_partition_directory,
)
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles

if TYPE_CHECKING:
    from ottla.storage.log.log import Log


class LogDirectories:
    """All of `log.dirs`. A directory whose disk fails goes offline; the others stay in service."""

    __slots__ = ("_files", "_locks", "_named", "_written", "all", "fs")

    def __init__(
        self, fs: FileSystem, paths: Sequence[str | os.PathLike[str]], max_open_files: int
    ) -> None:
        self.fs = fs
        self.all = [LogDirectory(fs, os.path.abspath(path)) for path in paths]
        self._locks: list[DirectoryLock] = []
        self._named: list[str] = []  # directories that this start gave to a broker
        # One per directory, because directories are loaded at the same time. Each may open at least
        # a few, or every read would open a file.
        share = max(8, max_open_files // max(1, len(self.all)))
        self._files = {directory.path: OpenFiles(share) for directory in self.all}
        # What this process knows to be in checkpoint files, which no other one writes.
        self._written: dict[str, Offsets] = {}

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.all if not directory.is_offline]

    def files_of(self, directory: LogDirectory) -> OpenFiles:
        return self._files[directory.path]

    def find(self, path: str) -> LogDirectory:
        """The directory with this path. Raises ValueError when it is not in `log.dirs`."""
        wanted = os.path.abspath(path)
        for directory in self.all:
            if directory.path == wanted:
                return directory
        raise ValueError(f"{path} is not one of the log directories")

    def choose(self, used: Mapping[str, int], preferred: str | None) -> LogDirectory:
        """The directory for a new log: the preferred one, or the one with the fewest logs.

        A full one only if all are full. Raises LogDirectoryOffline when all are offline.
        """
        online = self.online()
        if not online:
            raise LogDirectoryOffline(self.all[0].path, "no log directory is online")
        for directory in online:
            if directory.path == preferred:
                return directory
        return min(online, key=lambda d: (d.is_full, used.get(d.path, 0)))

    def lock(self) -> None:
        """Lock the directories against other processes, Kafka's too. Raises DirectoryInUse."""
        for directory in self.online():
            try:
                self.fs.make_directory(directory.path)
                self._locks.append(DirectoryLock(directory.path))
            except OSError as error:
                directory.fail(error)

    def unlock(self) -> None:
        """Release the locks."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def read_meta_properties(self) -> MetaProperties:
        """Broker id and cluster id of the directories; None for what none of them contains.

        Raises InconsistentMetadata when they differ, CorruptFile.
        """
        found = {}
        for directory in self.online():
            try:
                self.fs.make_directory(directory.path)
                meta = read_meta_properties(self.fs, directory.path)
            except OSError as error:
                directory.fail(error)
                continue
            if meta is not None:
                found[directory.path] = meta
        return common_meta_properties(found)

    def have_logs(self) -> bool:
        """Whether one of those that work has the directory of a partition."""
        for directory in self.online():
            try:
                names = self.fs.list_directories(directory.path)
            except OSError as error:
                directory.fail(error)
                continue
            parsed = filter(None, map(parse_partition_directory, names))
            if any(not suffix for _, _, suffix in parsed):
                return True
        return False

    def write_meta_properties(self, meta: MetaProperties) -> None:
        """Write `meta.properties` where it is missing or different. Synced."""
        for directory in self.online():
            try:
                found = read_meta_properties(self.fs, directory.path)
                if found is None:
                    self._named.append(directory.path)
                if found != meta:
                    write_meta_properties(self.fs, directory.path, meta)
            except OSError as error:
                directory.fail(error)

    def forget_new_meta_properties(self) -> None:
        """Remove `meta.properties` that was first written by this process: the broker did not get
        the id, and another id may use the directories. Those with logs keep it."""
        if self.have_logs():
            return
        for path in self._named:
            with suppress(OSError):
                self.fs.remove(f"{path}/{META_PROPERTIES}")
        self._named.clear()

    def write_checkpoint(self, name: str, offsets: Mapping[str, Offsets]) -> None:
        """Write a checkpoint file into every online directory in `offsets` (by path). Synced."""
        for directory in self.online():
            if directory.path in offsets:
                # The old checkpoint stays: outdated, but correct.
                with suppress(StorageError):
                    self.write_checkpoint_of(directory, name, offsets[directory.path])

    def write_checkpoint_of(self, directory: LogDirectory, name: str, offsets: Offsets) -> None:
        """Write a checkpoint file of one directory. Synced. Raises StorageError.

        Does nothing when the file has these offsets already. Keeps `offsets`.
        """
        directory.check_online()
        path = f"{directory.path}/{name}"
        if self._written.get(path) == offsets:
            return
        # After a failure it may have the old offsets or these.
        self._written.pop(path, None)
        try:
            write_offset_checkpoint(self.fs, path, offsets)
        except OSError as error:
            raise directory.write_failed(error) from error
        self._written[path] = offsets

    def has_written(self, directory: str, name: str, offsets: Offsets) -> bool:
        """Whether a checkpoint file of a directory, by its path, has these offsets."""
        return self._written.get(f"{directory}/{name}") == offsets

    def may_be_in_checkpoint(
        self, directory: LogDirectory, name: str, key: tuple[str, int]
    ) -> bool:
        """Whether a checkpoint file of a directory may have an offset of a partition."""
        path = f"{directory.path}/{name}"
        written = self._written.get(path)
        return key in written if written is not None else self.fs.exists(path)

    def mark_clean(self, broker_epoch: int, unclean: Collection[LogDirectory] = ()) -> None:
        """Write the clean shutdown file into the online directories but `unclean`. Synced."""
        for directory in self.online():
            if directory in unclean:
                continue
            try:
                marker = f"{directory.path}/{CLEAN_SHUTDOWN_FILE}"
                write_clean_shutdown(self.fs, marker, broker_epoch)
            except OSError as error:
                directory.write_failed(error)


# The process and the name that it used, by device and inode. A forked process inherits this table,
# but none of the locks.
_held: dict[tuple[int, int], tuple[int, str]] = {}
_guard = Lock()


class DirectoryLock:
    """The lock of one log directory, held until `release` or the end of the process."""

    __slots__ = ("_descriptors", "_key")

    def __init__(self, directory: str) -> None:
        """Raise DirectoryInUse when another broker holds the lock, in this process or another
        one, and OSError."""
        status = os.stat(directory)
        self._key = (status.st_dev, status.st_ino)
        self._descriptors: list[int] = []
        with _guard:
            process, name = _held.get(self._key, (-1, ""))
            if process == os.getpid():
                raise DirectoryInUse(
                    f"log dir {directory} is used by this process already, as {name}; "
                    "stop that broker, or give this one another log.dirs"
                )
            try:
                self._lock(directory)
            except BaseException:
                self._close()
                raise
            _held[self._key] = (os.getpid(), directory)

    def _lock(self, directory: str) -> None:
        path = f"{directory}/{LOCK_FILE}"
        in_use = DirectoryInUse(
            f"log dir {directory} is locked by another broker process ({path}); "
            "stop that one, or give this broker another log.dirs"
        )
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no such lock.
            if error.errno == errno.EWOULDBLOCK:
                raise in_use from None
        descriptor = os.open(path, CREATE, FILE_MODE)
        self._descriptors.append(descriptor)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise in_use from None

    def release(self) -> None:
        with _guard:
            if self._descriptors and _held.get(self._key, (-1, ""))[0] == os.getpid():
                del _held[self._key]
                with suppress(OSError):
                    # A forked process may have the descriptor, and the lock with it.
                    fcntl.flock(self._descriptors[0], fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


_VERSION = "0"


class MetaProperties(NamedTuple):
    """The broker and the cluster of a log directory; None for what the file does not contain."""

    broker_id: int | None
    cluster_id: str | None


def read_meta_properties(fs: FileSystem, directory: str) -> MetaProperties | None:
    """The properties of the directory, None when the file does not exist.

    Raises CorruptFile, also for another version (KRaft mode has version 1), OSError.
    """
    path = f"{directory}/{META_PROPERTIES}"
    values = read_properties(fs, path)
    if values is None:
        return None
    version = values.get("version", _VERSION)
    if version != _VERSION:
        raise CorruptFile(path, f"version {version} is not that of a broker in ZooKeeper mode")
    broker_id = values.get("broker.id")
    try:
        return MetaProperties(
            None if broker_id is None else int(broker_id), values.get("cluster.id")
        )
    except ValueError:
        raise CorruptFile(path, f"broker.id {broker_id!r} is not a number") from None


def write_meta_properties(fs: FileSystem, directory: str, meta: MetaProperties) -> None:
    """Replace the file; durable when this returns. Raises OSError."""
    values = {"broker.id": str(meta.broker_id), "version": _VERSION}
    if meta.cluster_id is not None:
        values["cluster.id"] = meta.cluster_id
    write_properties(fs, f"{directory}/{META_PROPERTIES}", values)


def common_meta_properties(found: dict[str, MetaProperties]) -> MetaProperties:
    """The properties that all directories (by path) share. Raises InconsistentMetadata."""
    broker_ids = {d: m.broker_id for d, m in found.items() if m.broker_id is not None}
    cluster_ids = {d: m.cluster_id for d, m in found.items() if m.cluster_id is not None}
    for what, values in (("broker.id", broker_ids), ("cluster.id", cluster_ids)):
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{directory}: {value}" for directory, value in values.items())
            raise InconsistentMetadata(f"log directories have different {what} values: {listed}")
    return MetaProperties(
        next(iter(broker_ids.values()), None), next(iter(cluster_ids.values()), None)
    )


Key = tuple[str, int]


class Placement:
    """The preferred directory of a partition, or the one with the fewest logs, as in Kafka."""

    __slots__ = ("_counts", "_directories", "_every_log", "_preferred")

    def __init__(self, directories: LogDirectories, every_log: Callable[[], Iterable[Log]]) -> None:
        """`every_log` returns all logs, future logs included."""
        self._directories = directories
        self._every_log = every_log
        # For partitions that do not exist yet (AlterReplicaLogDirs).
        self._preferred: dict[Key, str] = {}
        # Logs by directory, kept while logs are created: thousands of them would be counted for
        # each new one. None: to be counted.
        self._counts: Counter[str] | None = None

    def prefer(self, key: Key, directory: str) -> None:
        """Set the directory in which the partition will be created. Raises ValueError."""
        self._preferred[key] = self._directories.find(directory).path

    def choose(self, key: Key) -> LogDirectory:
        """The directory for a new log. Raises LogDirectoryOffline when all are offline."""
        if len(online := self._directories.online()) == 1:
            return online[0]
        if self._counts is None:
            self._counts = Counter(log.log_directory.path for log in self._every_log())
        return self._directories.choose(self._counts, self._preferred.get(key))

    def created(self, key: Key, directory: LogDirectory) -> None:
        """The log was created there."""
        self._preferred.pop(key, None)
        if self._counts is not None:
            self._counts[directory.path] += 1

    def changed(self) -> None:
        """A log was deleted, or moved to another directory."""
        self._counts = None
