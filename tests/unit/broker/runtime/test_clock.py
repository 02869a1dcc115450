import time

import pytest

from ottla.broker.runtime.clock import SystemClock
from tests.doubles.manual_timer import ManualClock


def test_the_system_clock_shows_the_machines_time() -> None:
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms() <= time.time_ns() // 1_000_000
    assert clock.monotonic() <= clock.monotonic()


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(now_ms=1_000)
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance(1_500)
    assert (clock.now_ms(), clock.monotonic()) == (2_500, 1.5)
    with pytest.raises(ValueError, match="only goes forward"):
        clock.advance(-1)


def test_the_wall_clock_may_jump_and_the_monotonic_one_does_not() -> None:
    clock = ManualClock(now_ms=1_000)
    clock.set_wall_ms(10)
    assert (clock.now_ms(), clock.monotonic()) == (10, 0.0)
