"""Turns of a chosen number of steps, so that a test says where long work pauses."""

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.protocol.steps import PACE


@contextmanager
def steps_per_turn(steps: int) -> Iterator[None]:
    """Within the block each turn ends after `steps` steps, whatever they take."""
    before = PACE.clock, PACE.turn_seconds, PACE.steps_per_reading
    PACE.turn_seconds, PACE.steps_per_reading = 0.0, steps
    try:
        yield
    finally:
        PACE.clock, PACE.turn_seconds, PACE.steps_per_reading = before


@contextmanager
def endless_turns() -> Iterator[None]:
    """Within the block no turn ends: long work runs as short work does."""
    before = PACE.clock
    PACE.clock = lambda: 0.0
    try:
        yield
    finally:
        PACE.clock = before
