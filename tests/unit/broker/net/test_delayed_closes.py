"""Refused connections that are closed after a while."""

from __future__ import annotations

import socket

import pytest

from ottla.broker.net import listener as delayed_closes
from ottla.broker.net.listener import DelayedCloses
from ottla.broker.runtime.timer import ManualTimer


def refused() -> socket.socket:
    return socket.socket()


def is_open(sock: socket.socket) -> bool:
    return sock.fileno() >= 0


def test_a_connection_stays_open_until_its_time() -> None:
    timer = ManualTimer()
    closes = DelayedCloses(timer)
    now, later = refused(), refused()
    closes.close(now, 0)
    closes.close(later, 100)
    assert (is_open(now), is_open(later), len(closes)) == (False, True, 1)
    timer.advance(99)
    assert is_open(later)
    timer.advance(1)
    assert (is_open(later), len(closes)) == (False, 0)


def test_too_many_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_closes, "MAX_DELAYED", 1)
    timer = ManualTimer()
    closes = DelayedCloses(timer)
    first, second = refused(), refused()
    closes.close(first, 100)
    closes.close(second, 100)
    assert (is_open(first), is_open(second)) == (True, False)
    closes.close_all()
    assert not is_open(first)
    timer.advance(100)  # what was closed before is not closed again
    assert len(closes) == 0
