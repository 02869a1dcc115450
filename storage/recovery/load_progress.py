"""How far the load of the logs is at a start: of how many logs, and of how many bytes to recover.

A worker thread writes the part of its directory; any thread reads the sums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from ottla.storage.files.layout import LOG_SUFFIX, offset_of_file


def _nothing() -> None:
    pass


class DirectoryProgress:
    """The part of one log directory. Written by the thread that loads it."""

    __slots__ = ("_step", "loaded_logs", "logs", "recovered_bytes", "recovery_bytes")

    def __init__(self, step: Callable[[], None] = _nothing) -> None:
        self._step = step
        self.logs = 0
        self.loaded_logs = 0
        #: Bytes of the segments at or above the recovery points, which recovery reads.
        self.recovery_bytes = 0
        self.recovered_bytes = 0

    @property
    def remaining_logs(self) -> int:
        return self.logs - self.loaded_logs

    @property
    def remaining_bytes(self) -> int:
        """Never below 0: a log that is corrupt after a clean shutdown was not expected."""
        return max(0, self.recovery_bytes - self.recovered_bytes)

    def add_recovered(self, count: int) -> None:
        """Recovery has read that many bytes more. Raises what the step of the start raises."""
        self.recovered_bytes += count
        self._step()

    def add_loaded(self, planned_bytes: int, read_bytes: int) -> None:
        """A log is loaded. Recovery read `read_bytes` of it: not what was flushed, nor what it
        deleted with a corrupt segment."""
        self.loaded_logs += 1
        self.recovery_bytes += read_bytes - planned_bytes
        self._step()


class LoadProgress:
    """The log directories of a broker. `step` is called in worker threads after each part of a
    segment and each log; what it raises ends the load."""

    def __init__(self, step: Callable[[], None] = _nothing) -> None:
        self.step = step
        self.directories: dict[str, DirectoryProgress] = {}

    def of_directory(self, path: str) -> DirectoryProgress:
        """The new part of a directory whose load begins."""
        # Replaced, not changed: other threads read it meanwhile.
        part = DirectoryProgress(self.step)
        self.directories = {**self.directories, path: part}
        return part

    @property
    def logs(self) -> int:
        return sum(part.logs for part in self.directories.values())

    @property
    def loaded_logs(self) -> int:
        return sum(part.loaded_logs for part in self.directories.values())

    @property
    def recovered_bytes(self) -> int:
        """The bytes that recovery has read."""
        return sum(part.recovered_bytes for part in self.directories.values())

    @property
    def recovery_bytes(self) -> int:
        """The bytes that recovery reads in all.

        Exact when all logs are loaded; before that, at most a segment for each log too many.
        """
        return self.recovered_bytes + sum(
            part.remaining_bytes for part in self.directories.values()
        )


def bytes_to_recover(files: dict[str, int], recovery_point: int) -> int:
    """The bytes of the segments that may have offsets at or above the recovery point.

    `files` has the sizes of the files of a log by name.
    """
    segments: list[tuple[int, int]] = []
    for name, size in files.items():
        base_offset = offset_of_file(name) if name.endswith(LOG_SUFFIX) else None
        if base_offset is not None:
            segments.append((base_offset, size))
    segments.sort()
    first = max(0, bisect_right(segments, recovery_point, key=lambda segment: segment[0]) - 1)
    return sum(size for _, size in segments[first:])
