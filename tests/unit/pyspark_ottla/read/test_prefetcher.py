"""An iterator that runs ahead in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pyspark_ottla.read.prefetcher import Prefetcher


def test_prefetching_hands_over_in_order_and_raises_at_the_end() -> None:
    def source() -> Iterator[int]:
        yield from range(20)
        raise ValueError("after that")

    ahead = Prefetcher(source(), 2, "test")
    taken = []
    with pytest.raises(ValueError, match="after that"):
        taken.extend(ahead)
    assert ahead.close()
    with pytest.raises(StopIteration):
        next(ahead)


def test_prefetching_stops_when_it_is_closed_and_stays_within_its_bound() -> None:
    made = []
    enough = threading.Event()

    def source() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            if number == 3:
                enough.set()
            yield number

    ahead = Prefetcher(source(), 2, "test")
    assert next(ahead) == 0
    assert enough.wait(60)
    assert ahead.close()
    assert len(made) <= 5, "one taken, two waiting, one in the making"


def test_what_ends_the_thread_ends_the_iteration() -> None:
    """As SystemExit of a function of the user's, or a panic of a library in Rust: no Exceptions."""

    class Panic(BaseException):
        pass

    def source() -> Iterator[int]:
        yield 1
        raise Panic

    ahead = Prefetcher(source(), 2, "test")
    assert next(ahead) == 1
    with pytest.raises(Panic):
        next(ahead)
    assert ahead.close()
