"""A way to a broker that loses responses of one API: it closes the connection instead."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_CONNECT_SECONDS = 30.0


class Request(NamedTuple):
    """A request under way: its API, its bytes with the length, and when it came (monotonic)."""

    api_key: int
    frame: bytes
    arrived: float


_Pending = deque[Request]


class LosingProxy:
    """Forwards all frames between clients and one broker, in threads.

    The broker must advertise `port`. When `loses` returns True for the response to a request of
    `api_key`, the broker has processed it and the client sees a closed connection.
    """

    def __init__(self, api_key: int, loses: Callable[[Request], bool]) -> None:
        #: To be set when the broker, which has to know `port`, has started.
        self.broker_port = 0
        self._api_key = api_key
        self._loses = loses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: How many responses of the API there were, and how many of them were lost.
        self.responses = self.lost = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                _end(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.broker_port), _CONNECT_SECONDS)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            with self._lock:
                self._sockets |= {client, broker}
            pending: _Pending = deque()  # a broker responds in their order
            for copy in (self._requests, self._responses):
                threading.Thread(target=copy, args=(client, broker, pending), daemon=True).start()

    def _requests(
        self, client: socket.socket, broker: socket.socket, pending: deque[Request]
    ) -> None:
        try:
            while frame := _read_frame(client):
                api_key = _API_KEY.unpack_from(frame, 4)[0]
                pending.append(Request(api_key, frame, time.monotonic()))
                broker.sendall(frame)
        except OSError:
            pass
        self._end_both(client, broker)

    def _responses(
        self, client: socket.socket, broker: socket.socket, pending: deque[Request]
    ) -> None:
        try:
            while frame := _read_frame(broker):
                request = pending.popleft()
                if request.api_key == self._api_key and self._is_lost(request):
                    break
                client.sendall(frame)
        except OSError:
            pass
        self._end_both(client, broker)

    def _is_lost(self, request: Request) -> bool:
        with self._lock:
            is_lost = self._loses(request)
            self.responses += 1
            self.lost += is_lost
            return is_lost

    def _end_both(self, *ends: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(ends)
        for each in ends:
            _end(each)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _read_frame(sock: socket.socket) -> bytes:
    """The next frame with its length; empty at the end."""
    head = _read(sock, _LENGTH.size)
    return head + _read(sock, _LENGTH.unpack(head)[0]) if head else b""


def _read(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        data = sock.recv(min(size, 1 << 16))
        if not data:
            return b""
        parts.append(data)
        size -= len(data)
    return b"".join(parts)
