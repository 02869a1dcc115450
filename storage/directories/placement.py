"""In which log directory a new log is created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.directories.log_directories import LogDirectories
    from ottla.storage.files.log_directory import LogDirectory
    from ottla.storage.log.log import Log

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
        """Sets the directory in which the partition will be created. Raises ValueError."""
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
