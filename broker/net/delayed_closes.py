"""Connections over the rate of their address, which stay open and unread until they are closed.

A client whose connection is closed at once connects again at once. Kafka's acceptor delays the
close, too (`DelayedCloseSocket`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from ottla.broker.runtime.timer import DelayQueue

# Of a listener: each holds a descriptor. A client that waits for the end of its connection has
# one; those above the bound, of clients that open many side by side, are closed at once.
MAX_DELAYED = 100


class DelayedCloses:
    """The refused connections of a listener. Loop only."""

    def __init__(self, timer: DelayQueue) -> None:
        self._timer = timer
        # In the order in which they wait.
        self._sockets: dict[socket.socket, None] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def close(self, sock: socket.socket, delay_ms: int) -> None:
        """Closes the connection after the delay, or at once if it is 0 or too many wait."""
        if delay_ms <= 0 or len(self._sockets) >= MAX_DELAYED:
            sock.close()
            return
        self._sockets[sock] = None
        self._timer.schedule(delay_ms, partial(self._close, sock))

    def close_all(self) -> None:
        """Closes what still waits."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _close(self, sock: socket.socket) -> None:
        self._sockets.pop(sock, None)
        sock.close()
