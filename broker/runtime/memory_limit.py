"""The memory that the process may use: the least of the control groups, the machine and RLIMIT.

Linux only in its details: control groups of version 1 and 2 are read from `/sys/fs/cgroup`, in a
container and outside of one. A limit of a parent group counts, too. On other systems the size of
the machine is all that is known.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from ottla.broker.runtime.control_groups import groups

# Version 1 writes "no limit" as a number near 2**63, rounded down to a page.
_NO_LIMIT = 1 << 60
# By the version of the control groups.
_LIMIT_FILES = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}


def memory_limit(root: Path = Path("/")) -> int:
    """The bytes of memory that the process may use, at least 1. `root` is for tests.

    Reads a few small files of the kernel, which takes some ten microseconds.
    """
    found = [limit for limit in (_machine(), _of_groups(root), _of_rlimits(root)) if limit]
    return max(min(found, default=sys.maxsize), 1)


def resident_bytes(root: Path = Path("/")) -> int:
    """The memory that the process uses now, 0 if that is not known."""
    return _statm(root)[1]


def _machine() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _statm(root: Path) -> tuple[int, int]:
    """The address space and the resident memory of the process."""
    try:
        size, resident = (root / "proc/self/statm").read_text().split()[:2]
    except (OSError, ValueError):
        return 0, 0
    page = resource.getpagesize()
    return int(size) * page, int(resident) * page


def _of_rlimits(root: Path) -> int:
    """The soft limits of the address space and of data, less what takes them but no memory: files
    that are mapped and stacks of threads."""
    size, resident = _statm(root)
    unused = max(size - resident, 0)
    limits = []
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft = resource.getrlimit(kind)[0]
        if soft != resource.RLIM_INFINITY:
            limits.append(max(soft - unused, 1))
    return min(limits, default=0)


def _of_groups(root: Path) -> int:
    """The least limit of the process's memory groups and their parents; 0 without one."""
    limits = [
        limit
        for group in groups("memory", root)
        for name in _LIMIT_FILES[group.version]
        if (limit := _limit(group.directory / name))
    ]
    return min(limits, default=0)


def _limit(path: Path) -> int:
    try:
        value = int(path.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return 0
    return value if 0 < value < _NO_LIMIT else 0
