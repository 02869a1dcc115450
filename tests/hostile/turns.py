"""Counts what each turn of a broker's event loop does, in calls of functions.

The number of calls depends on the request alone, not on the machine or on what else runs on it.
Half a million of them take 50 ms on a slow machine.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.broker.testing import embedded


class TurnMeter:
    """The most calls in one turn since `reset`, what that turn was, and the calls of all turns."""

    def __init__(self) -> None:
        self.most_calls = 0
        self.all_calls = 0
        self.where = ""
        self._calls = 0
        self._thread_id = 0

    def reset(self) -> None:
        self.most_calls = self.all_calls = 0
        self.where = ""

    def watch(self, thread: threading.Thread) -> None:
        """Count the turns of this thread's loop from now on."""
        assert thread.ident is not None
        self._thread_id = thread.ident

    def stop(self) -> None:
        """Count no more turns, until `watch`."""
        self._thread_id = 0

    def run(self, handle: asyncio.Handle, original: Any) -> None:
        """One turn."""
        if threading.get_ident() != self._thread_id:
            original(handle)
            return
        self._calls = 0
        sys.setprofile(self._count)
        try:
            original(handle)
        finally:
            sys.setprofile(None)
            self.all_calls += self._calls
            if self._calls > self.most_calls:
                self.most_calls = self._calls
                self.where = repr(handle)

    def _count(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1


@contextmanager
def measured_broker(
    monkeypatch: pytest.MonkeyPatch, **settings: object
) -> Iterator[tuple[embedded.Broker, TurnMeter]]:
    """A broker on asyncio's own loop, whose callbacks can be counted."""
    meter = TurnMeter()
    original = asyncio.events.Handle._run
    monkeypatch.setattr(embedded, "new_event_loop", asyncio.new_event_loop)
    monkeypatch.setattr(asyncio.events.Handle, "_run", lambda handle: meter.run(handle, original))
    with embedded.Broker(**settings) as broker:
        assert broker._thread is not None
        meter.watch(broker._thread)
        yield broker, meter
