"""Sends frames as they are and reads what comes back."""

from __future__ import annotations

import socket
from contextlib import suppress
from struct import Struct

SIZE = Struct(">i")
DEADLINE_SECONDS = 60.0


class RawClient:
    """One connection. `send` and `receive` are apart, so that others can act in between."""

    def __init__(self, port: int, from_host: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection(
            ("127.0.0.1", port), DEADLINE_SECONDS, source_address=(from_host, 0)
        )

    def send(self, frame: bytes) -> None:
        """Send a frame. That the broker closes the connection meanwhile is no error."""
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` reports it
            self.sock.sendall(SIZE.pack(len(frame)) + frame)

    def receive(self) -> int:
        """The length of the response; -1 when the connection was closed. TimeoutError when neither
        happens."""
        try:
            head = self._exactly(4)
            if not head:
                return -1
            length: int = SIZE.unpack(head)[0]
            return length if self._exactly(length) else -1
        except ConnectionResetError:
            return -1

    def _exactly(self, length: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < length:
            piece = self.sock.recv(min(length - len(pieces), 1 << 20))
            if not piece:
                return b""
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        self.sock.close()


def ask(port: int, frame: bytes) -> int:
    """Send one frame on a connection of its own; what `receive` returns."""
    client = RawClient(port)
    try:
        client.send(frame)
        return client.receive()
    finally:
        client.close()
