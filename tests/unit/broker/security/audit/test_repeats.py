"""Lines are bounded by event, by address and in all, and nothing is lost without a number."""

from __future__ import annotations

from random import Random

import pytest

from ottla.broker.security.audit import repeats
from ottla.broker.security.audit.repeats import (
    INTERVAL_SECONDS,
    LINES_OF_ADDRESS,
    LINES_OF_ALL,
    LINES_OF_EVENT,
    MAX_ADDRESSES,
    MAX_EVENTS,
    Event,
    RepeatCounts,
)
from tests.doubles.seeds import seeds

WRONG_PASSWORD = Event("10.0.0.1", "alice", "wrong password")


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts(clock: Clock) -> RepeatCounts:
    return RepeatCounts(clock)


def test_the_same_event_has_a_few_lines_and_a_number(counts: RepeatCounts, clock: Clock) -> None:
    written = [counts.admit(WRONG_PASSWORD) for _ in range(1525)]
    assert written == [0] * LINES_OF_EVENT + [None] * (1525 - LINES_OF_EVENT)
    assert list(counts.counted()) == []  # the interval is not over
    clock.seconds += INTERVAL_SECONDS
    assert list(counts.counted()) == [(WRONG_PASSWORD, 1525 - LINES_OF_EVENT)]
    assert not counts.has_suppressed
    assert counts.admit(WRONG_PASSWORD) == 0


def test_the_next_line_has_the_number(counts: RepeatCounts, clock: Clock) -> None:
    for _ in range(LINES_OF_EVENT + 7):
        counts.admit(WRONG_PASSWORD)
    clock.seconds += INTERVAL_SECONDS
    assert counts.admit(WRONG_PASSWORD) == 7


def test_guessed_names_have_the_lines_of_an_address(counts: RepeatCounts) -> None:
    guesses = [WRONG_PASSWORD._replace(user=f"user{number}") for number in range(5000)]
    lines = sum(counts.admit(guess) is not None for guess in guesses)
    assert lines == LINES_OF_ADDRESS
    # Another address is not affected.
    assert counts.admit(Event("10.0.0.2", "bob", "wrong password")) == 0
    assert list(counts.counted(everything=True)) == [
        (Event("10.0.0.1", "", ""), 5000 - LINES_OF_ADDRESS)
    ]


def test_many_addresses_have_the_lines_of_all(counts: RepeatCounts) -> None:
    events = [Event(f"10.0.{n // 256}.{n % 256}", "a", "b") for n in range(10_000)]
    assert sum(counts.admit(event) is not None for event in events) == LINES_OF_ALL
    assert sum(count for _, count in counts.counted(everything=True)) == 10_000 - LINES_OF_ALL


@pytest.mark.parametrize("seed", seeds(5))
def test_lines_and_counts_add_up(
    seed: int, counts: RepeatCounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is forgotten for want of room, its number is kept."""
    monkeypatch.setattr(repeats, "MAX_EVENTS", 20)
    monkeypatch.setattr(repeats, "MAX_ADDRESSES", 5)
    random = Random(seed)
    admitted = suppressed = 0
    steps = 20_000
    for _ in range(steps):
        user = f"user{int(random.expovariate(0.2))}"
        found = counts.admit(Event(f"10.0.0.{random.randrange(7)}", user, "b"))
        if found is not None:
            admitted += 1
            suppressed += found
        clock.seconds += random.random() / 50
        if random.random() < 0.001:
            suppressed += sum(count for _, count in counts.counted())
    suppressed += sum(count for _, count in counts.counted(everything=True))
    assert admitted + suppressed == steps
    assert admitted < steps


def test_memory_is_bounded(counts: RepeatCounts, clock: Clock) -> None:
    for number in range(3 * MAX_EVENTS):
        counts.admit(Event(f"10.{number}", "a", "b"))
        clock.seconds += 1
    assert len(counts._events) <= MAX_EVENTS
    assert len(counts._addresses) <= MAX_ADDRESSES
