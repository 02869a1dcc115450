"""The log directories (disks) of a broker: locks, properties, checkpoints, placement of logs."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from ottla.storage.directories.directory_lock import DirectoryLock
from ottla.storage.directories.meta_properties import (
    MetaProperties,
    common_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from ottla.storage.errors import LogDirectoryOffline, StorageError
from ottla.storage.files.checkpoints import Offsets, write_clean_shutdown, write_offset_checkpoint
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.layout import CLEAN_SHUTDOWN_FILE
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles


class LogDirectories:
    """All of `log.dirs`. A directory whose disk fails goes offline; the others stay in service."""

    __slots__ = ("_files", "_locks", "_written", "all", "fs")

    def __init__(
        self, fs: FileSystem, paths: Sequence[str | os.PathLike[str]], max_open_files: int
    ) -> None:
        self.fs = fs
        self.all = [LogDirectory(fs, os.path.abspath(path)) for path in paths]
        self._locks: list[DirectoryLock] = []
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
        """Locks the directories against other processes, Kafka's too. Raises DirectoryInUse."""
        for directory in self.online():
            try:
                self.fs.make_directory(directory.path)
                self._locks.append(DirectoryLock(directory.path))
            except OSError as error:
                directory.fail(error)

    def unlock(self) -> None:
        """Releases the locks."""
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

    def write_meta_properties(self, meta: MetaProperties) -> None:
        """Writes `meta.properties` where it is missing or different. Synced."""
        for directory in self.online():
            try:
                if read_meta_properties(self.fs, directory.path) != meta:
                    write_meta_properties(self.fs, directory.path, meta)
            except OSError as error:
                directory.fail(error)

    def write_checkpoint(self, name: str, offsets: Mapping[str, Offsets]) -> None:
        """Writes a checkpoint file into every online directory in `offsets` (by path). Synced."""
        for directory in self.online():
            if directory.path in offsets:
                # The old checkpoint stays: outdated, but correct.
                with suppress(StorageError):
                    self.write_checkpoint_of(directory, name, offsets[directory.path])

    def write_checkpoint_of(self, directory: LogDirectory, name: str, offsets: Offsets) -> None:
        """Writes a checkpoint file of one directory. Synced. Raises StorageError.

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
        """Writes the clean shutdown file into the online directories but `unclean`. Synced."""
        for directory in self.online():
            if directory in unclean:
                continue
            try:
                marker = f"{directory.path}/{CLEAN_SHUTDOWN_FILE}"
                write_clean_shutdown(self.fs, marker, broker_epoch)
            except OSError as error:
                directory.write_failed(error)
