"""Waiting for what another process, thread or task brings about, without a notification."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Long enough for a busy machine; what comes in time is seen at once.
DEADLINE_SECONDS = 60.0


def is_listening(port: int) -> bool:
    """Whether a process accepts connections on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def eventually(
    condition: Callable[[], T],
    message: str | Callable[[], object] = "it did not happen",
    *,
    seconds: float = DEADLINE_SECONDS,
    pause_seconds: float = 0.05,
) -> T:
    """Calls `condition` until it returns something true, and returns that.

    Fails with `message` (called, when it can be, so that it shows the last state) after `seconds`.
    A condition that itself takes time, as a poll does, needs no pause.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, _text(message)
        time.sleep(pause_seconds)
    return found


async def eventually_async(
    condition: Callable[[], object],
    message: str | Callable[[], object] = "it did not happen",
    *,
    seconds: float = DEADLINE_SECONDS,
) -> None:
    """As `eventually`, while the event loop runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, _text(message)
        await asyncio.sleep(0.001)


def _text(message: str | Callable[[], object]) -> object:
    return message() if callable(message) else message
