"""The plainest Kafka client there is: one socket, one request, one response. For tests that must
say exactly what goes over the wire and look at exactly what comes back."""

import socket
import struct
from types import TracebackType

from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.message import Message

DEADLINE_S = 30.0


class ConnectionClosed(Exception):
    """The broker closed the connection instead of a response."""


class Wire:
    """One connection to `bootstrap` ("host:port"), from `source_host` if that is given."""

    def __init__(
        self, bootstrap: str, client_id: str | None = "wire", source_host: str = ""
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        source = (source_host, 0) if source_host else None
        self._socket = socket.create_connection((host, int(port)), DEADLINE_S, source)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    @property
    def local_port(self) -> int:
        """The port that the broker knows this client by."""
        port: int = self._socket.getsockname()[1]
        return port

    def send(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        frame = encode_request(self._correlation_id, self._client_id, request, version)
        self.send_bytes(frame)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next response without its four bytes of size."""
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def ask(self, request: Message, version: int) -> Message:
        """The decoded response; raises ConnectionClosed where the broker hangs up instead."""
        self.send(request, version)
        return self.receive(request.API_KEY, version)

    def receive(self, api_key: int, version: int) -> Message:
        """The decoded response to the last request, when no other one is under way."""
        correlation_id, response = decode_response(self.receive_frame(), api_key, version)
        assert correlation_id == self._correlation_id
        return response

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionClosed(f"{len(data)} of {size} bytes came before the end")
            data += more
        return data
