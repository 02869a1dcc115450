"""What a simulated process gets for the clock, for randomness and for identifiers.

`install` runs before anything of Ottla is imported, in a process that does nothing but simulate:
`time.monotonic` and the others become functions of the simulated loop, random numbers and uuids
come from one seeded generator. So every module sees them, also those that are imported late.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Protocol

EPOCH_MS = 1_700_000_000_000


class VirtualTime(Protocol):
    """The time of a simulation."""

    def tick(self) -> float:
        """Seconds; a reading of the clock takes a little time itself."""
        ...


class _Source:
    """Where the functions get their values from; one simulation at a time."""

    def __init__(self) -> None:
        self.tick: Callable[[], float] = time.monotonic  # the real clock
        self.random = random.Random(0)


_source = _Source()
_RealRandom = random.Random


class _SeededRandom(_RealRandom):
    """A generator made without a seed takes one from the simulation, not from the kernel."""

    def __init__(self, seed: object = None) -> None:
        super().__init__(_source.random.getrandbits(64) if seed is None else seed)  # type: ignore[arg-type]

    def __new__(cls, *_: object) -> _SeededRandom:
        return super().__new__(cls, 0)


_real_monotonic = time.monotonic
# Log records read the real clock: the same seed has the same history with --verbose.
_real_time = SimpleNamespace(time=time.time, time_ns=time.time_ns)


def _monotonic() -> float:
    return _source.tick()


def _time_ns() -> int:
    return EPOCH_MS * 1_000_000 + int(_monotonic() * 1_000_000_000)


def install() -> None:
    """Replaces the functions of the standard library in this process, for good."""
    logging.time = _real_time  # type: ignore[attr-defined]
    time.monotonic = _monotonic
    time.perf_counter = _monotonic
    time.monotonic_ns = lambda: int(_monotonic() * 1_000_000_000)
    time.thread_time = _monotonic
    time.time_ns = _time_ns
    time.time = lambda: _time_ns() / 1_000_000_000
    random.Random = _SeededRandom  # type: ignore[misc]
    uuid.uuid4 = lambda: uuid.UUID(int=_source.random.getrandbits(128), version=4)
    os.urandom = lambda size: _source.random.randbytes(size)  # noqa: PLW0108  # bound late
    secrets.token_bytes = lambda size=None: _source.random.randbytes(size or 32)
    for name in ("random", "randint", "randrange", "choice", "uniform", "shuffle", "sample"):
        setattr(random, name, _forward(name))


def _forward(name: str) -> object:
    def call(*arguments: object, **named: object) -> object:
        return getattr(_source.random, name)(*arguments, **named)

    return call


def begin(virtual_time: VirtualTime, seed: int) -> None:
    """From now on the functions found from this simulation."""
    _source.tick = virtual_time.tick
    _source.random = random.Random(f"processes {seed}")


def end() -> None:
    """The real clock is back."""
    _source.tick = _real_monotonic
