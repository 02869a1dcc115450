"""A control group that limits the memory of a process: the kernel kills what exceeds it.

It needs root and the memory controller, of version 1 or 2. Without them the limit is only told to
the broker (`ottla.memory.max.bytes`), and the test looks at the peak of its memory afterwards:
RLIMIT_AS is no substitute, because it counts what is mapped and the stacks of threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A limit in bytes; `prefix` stands before the command that it holds for."""

    def __init__(self, limit: int, place: Path | None) -> None:
        self.limit = limit
        self._place = place

    @property
    def is_enforced(self) -> bool:
        """The kernel ends a process that needs more."""
        return self._place is not None

    @property
    def prefix(self) -> Sequence[str]:
        if self._place is None:
            return ()
        return ("sh", "-c", f'echo $$ > {self._place}/cgroup.procs && exec "$@"', "sh")

    @property
    def settings(self) -> dict[str, str]:
        """Of the broker, if the kernel does not tell it."""
        return {} if self.is_enforced else {"ottla_memory_max_bytes": str(self.limit)}


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A group below that of the tests, or one that is not enforced."""
    place = _make(limit)
    try:
        yield MemoryGroup(limit, place)
    finally:
        if place is not None:
            place.rmdir()


def peak_bytes(pid: int) -> int:
    """The most memory that a process has used so far, files it has mapped included."""
    return _status(pid, "VmHWM:")


def resident_bytes(pid: int) -> int:
    """The memory that a process uses now."""
    return _status(pid, "VmRSS:")


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {name} of process {pid}: it has ended")


def _make(limit: int) -> Path | None:
    for parent, file in ((_ROOT / "memory", "memory.limit_in_bytes"), (_ROOT, "memory.max")):
        place = parent / f"ottla-test-{os.getpid()}"
        try:
            place.mkdir()
        except OSError:  # not root, or no such file system
            continue
        try:
            if (place / file).exists():  # else it is without this controller
                (place / file).write_text(str(limit))
                return place
        except OSError:
            pass
        place.rmdir()
    return None
