"""What the benchmarks of the storage share: a log directory, times, and a line of output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager

NOW_MS = 1_700_000_000_000
MIB = 1 << 20
ZERO_OFFSET = bytes(8)


def say(name: str, value: float, unit: str, note: str = "") -> None:
    print(f"{name:<44} {value:>10.2f} {unit:<12} {note}".rstrip(), flush=True)


def opened(directory: Path, **settings: object) -> LogManager:
    manager = LogManager([directory], LogConfig(**settings))
    manager.load(NOW_MS)
    return manager


class Taken(NamedTuple):
    """Seconds by the clock, and of the processor: the second is comparable on a busy machine."""

    wall: float
    processor: float

    def __sub__(self, other: Taken) -> Taken:
        return Taken(self.wall - other.wall, self.processor - other.processor)


def now() -> Taken:
    return Taken(time.perf_counter(), time.process_time())


def taken_by(work: Callable[[], object]) -> Taken:
    begin = now()
    work()
    return now() - begin


def processor(seconds: float, unit: str = "s") -> str:
    scale = 1e6 if unit == "us" else 1
    return f"processor {seconds * scale:.2f} {unit}"


def resident_mib(pid: int | None = None) -> float:
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB
