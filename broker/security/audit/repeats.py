"""Bounds how many lines of one kind of event are written, and counts the rest. Pure.

An event has an address, a user name and a reason. The name is whatever a client claims to be, so
there are three bounds, each in an interval: for the same event, for one address, and for all. What
is not written is counted where the bound was met, so that no event is lost without a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

INTERVAL_SECONDS = 60.0

# Lines in an interval. The first is for mistakes that repeat, the second for guesses of names, the
# third for guesses from many addresses: 2,000 lines are about 400 KB.
LINES_OF_EVENT = 10
LINES_OF_ADDRESS = 100
LINES_OF_ALL = 2000

# What is remembered: an entry has a few hundred bytes. When there are more, the oldest entry is
# forgotten and its count is added to that of its address, or of all.
MAX_EVENTS = 4096
MAX_ADDRESSES = 1024


class Event(NamedTuple):
    """`user` and `reason` are empty in the count of an address, `address` too in that of all."""

    address: str
    user: str
    reason: str


class _Count:
    __slots__ = ("lines", "started", "suppressed")

    def __init__(self, started: float) -> None:
        self.started = started
        self.lines = 0
        self.suppressed = 0


class RepeatCounts:
    """Which events are written. Times are monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._events: dict[Event, _Count] = {}  # the oldest first
        self._addresses: dict[str, _Count] = {}  # likewise
        self._all = _Count(now())

    def admit(self, event: Event) -> int | None:
        """How many of the same were suppressed since its last line, if this one is to be written;
        else None, and it is counted."""
        now = self._now()
        own = self._event(event, now)
        address = self._address(event.address, now)
        total = self._renewed(self._all, now)
        if own is not None and own.lines >= LINES_OF_EVENT:
            own.suppressed += 1
            return None
        for count, bound in ((address, LINES_OF_ADDRESS), (total, LINES_OF_ALL)):
            if count.lines >= bound:
                (own or count).suppressed += 1
                return None
        if own is None:
            own = self._remember(event, now)
        for count in (own, address, total):
            count.lines += 1
        suppressed, own.suppressed = own.suppressed, 0
        return suppressed

    def add_suppressed(self, address: str, events: int) -> None:
        """Count events of an address that are not written, whatever they are."""
        self._address(address, self._now()).suppressed += events

    def counted(self, *, everything: bool = False) -> Iterator[tuple[Event, int]]:
        """What was suppressed in intervals that are over, or so far; it is forgotten with that."""
        now = self._now()

        def is_over(count: _Count) -> bool:
            return everything or now - count.started >= INTERVAL_SECONDS

        for event, count in list(self._events.items()):
            if is_over(count):
                del self._events[event]
                if count.suppressed:
                    yield event, count.suppressed
        for address, count in list(self._addresses.items()):
            if is_over(count):
                del self._addresses[address]
                if count.suppressed:
                    yield Event(address, "", ""), count.suppressed
        if is_over(self._all):
            suppressed = self._all.suppressed
            self._all = _Count(now)
            if suppressed:
                yield Event("", "", ""), suppressed

    @property
    def has_suppressed(self) -> bool:
        """Whether `counted` has something to say, now or later."""
        counts = (self._all, *self._addresses.values(), *self._events.values())
        return any(count.suppressed for count in counts)

    def _event(self, event: Event, now: float) -> _Count | None:
        count = self._events.get(event)
        return None if count is None else self._renewed(count, now)

    def _address(self, address: str, now: float) -> _Count:
        count = self._addresses.get(address)
        if count is None:
            if len(self._addresses) >= MAX_ADDRESSES:
                oldest = next(iter(self._addresses))
                self._all.suppressed += self._addresses.pop(oldest).suppressed
            count = self._addresses[address] = _Count(now)
        return self._renewed(count, now)

    def _remember(self, event: Event, now: float) -> _Count:
        if len(self._events) >= MAX_EVENTS:
            oldest = next(iter(self._events))
            suppressed = self._events.pop(oldest).suppressed
            if suppressed:
                self._address(oldest.address, now).suppressed += suppressed
        count = self._events[event] = _Count(now)
        return count

    @staticmethod
    def _renewed(count: _Count, now: float) -> _Count:
        """With an interval that is not over. What was suppressed stays, for the next line."""
        if now - count.started >= INTERVAL_SECONDS:
            count.started = now
            count.lines = 0
        return count
