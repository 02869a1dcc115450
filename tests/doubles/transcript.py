"""The same conversation with two brokers, written down so that it can be compared.

A script talks to a broker through a `Transcript`: requests of a chosen version on named
connections, every response noted. What may differ between two brokers is made equal when it is
noted: random ids and producer ids are numbered in the order in which they appear, times become
"T", the broker's port "PORT", lists of structs and numbers are sorted.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import TypeVar

from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.message import Message, Struct

M = TypeVar("M", bound=Message)

RESPONSE_DEADLINE_S = 30.0

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT_UUID = re.compile(r"[A-Za-z0-9_-]{22}")  # the same in base64: KIP-848's member ids
_UNORDERED = frozenset(("subscribed_topic_names",))
_TIMES = frozenset(("transaction_start_time_ms", "last_timestamp", "commit_timestamp"))


class RawConnection:
    """A socket that speaks Kafka, one request at a time, without any negotiation."""

    def __init__(self, bootstrap: str, client_id: str | None = "client") -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=RESPONSE_DEADLINE_S)
        self._client_id = client_id
        self._correlation_id = 0
        self._asked: tuple[int, int] | None = None

    def send(self, message: Message, version: int) -> None:
        self._correlation_id += 1
        self._asked = (message.API_KEY, version)
        frame = encode_request(self._correlation_id, self._client_id, message, version)
        self._socket.sendall(frame)

    def receive(self, deadline_s: float = RESPONSE_DEADLINE_S) -> Message:
        """The response to what was sent last; raises TimeoutError when there is none in time."""
        assert self._asked is not None
        self._socket.settimeout(deadline_s)
        (size,) = struct.unpack(">i", self._read(4))
        correlation_id, response = decode_response(self._read(size), *self._asked)
        assert correlation_id == self._correlation_id
        return response

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            data += chunk
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


class Transcript:
    """A conversation with one broker; `lines` is what two brokers are compared by."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.lines: list[str] = []
        self._port = int(bootstrap.rsplit(":", 1)[1])
        self._connections: dict[str, RawConnection] = {}
        self._numbers: dict[str, str] = {}
        self._producer_ids: dict[int, str] = {}
        #: What to call topic ids; others are shown as they are.
        self.topic_ids: dict[bytes, str] = {}

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def connection(self, name: str = "main", client_id: str | None = "client") -> RawConnection:
        if name not in self._connections:
            self._connections[name] = RawConnection(self.bootstrap, client_id)
        return self._connections[name]

    def say(self, text: str) -> None:
        """A headline, so that a difference is found in the script."""
        self.lines.append(f"# {text}")

    def ask(self, message: Message, version: int, on: str = "main") -> Message:
        """Send, wait for the response, note it."""
        self.send(message, version, on)
        return self.receive(on)

    def send(self, message: Message, version: int, on: str = "main") -> None:
        self.connection(on).send(message, version)
        self.lines.append(f"-> {message.NAME} v{version} on {on}")

    def receive(self, on: str = "main") -> Message:
        try:
            response = self.connection(on).receive()
        except (ConnectionError, TimeoutError) as failure:
            self.lines.append(f"<- {type(failure).__name__}")
            self._connections.pop(on).close()
            raise
        self.lines.append(f"<- {self._show(response)}")
        return response

    def quietly(self, message: Message, version: int, on: str = "main") -> Message:
        """Ask without noting anything: for what has to be waited for."""
        connection = self.connection(on)
        connection.send(message, version)
        return connection.receive()

    # Making responses comparable.

    def _show(self, value: object, field: str = "") -> str:
        if isinstance(value, Struct):
            fields = (
                f"{name}={self._show(getattr(value, name), name)}"
                for name in value.__slots__
                if name != "unknown_tagged_fields"
            )
            return f"{type(value).__name__}({', '.join(fields)})"
        if isinstance(value, list):
            shown = [self._show(item, field) for item in value]
            if value and (isinstance(value[0], Struct | int) or field in _UNORDERED):
                shown.sort()
            return f"[{', '.join(shown)}]"
        if field == "error_message" and value not in (None, "", "NONE"):
            return "TEXT"  # each broker has its own
        if field == "topic_id" and isinstance(value, bytes):
            return self.topic_ids.get(value, repr(value))
        if isinstance(value, bytes | bytearray | memoryview) and field == "records":
            return f"{len(value)} bytes"
        if field == "member_id" and isinstance(value, str) and _SHORT_UUID.fullmatch(value):
            return self._number(value)
        if isinstance(value, str):
            return repr(_UUID.sub(lambda found: self._number(found.group()), value))
        if field == "port" and value == self._port:
            return "PORT"
        if field == "producer_id" and isinstance(value, int) and value >= 0:
            known = self._producer_ids
            return known.setdefault(value, f"P{len(known)}")
        if field in _TIMES and isinstance(value, int) and value > 0:
            return "T"
        return repr(value)

    def _number(self, uuid: str) -> str:
        return self._numbers.setdefault(uuid, f"UUID{len(self._numbers)}")
