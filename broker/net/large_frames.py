"""Bounds the memory of large requests: how long a frame may be, and how many bytes an address has
in progress.

Kafka allows 100 MB for each request (`socket.request.max.bytes`) on each connection, whatever it
is. Only records need that, and the states of partitions that controllers send; any other request is
a few kilobytes, for a very large group a few megabytes. Frames of one read or less are not counted
here: their number is bounded by that of the connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ottla.broker.requests.request_channel import Principal
from ottla.protocol.registry import ApiKey

# Frames above this are counted: it is the size of one read of a connection.
LARGE_BYTES = 65536

DEFAULT_MAX_REQUEST_BYTES = 8 << 20
DEFAULT_MAX_ADDRESS_BYTES = 32 << 20

_OF_CONTROLLERS = frozenset((ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA))

# Whether a client may send an API at all, as far as that is known before its request is decoded.
MaySend = Callable[["LargeFrameSender", int], bool]


class LargeFrameSender(Protocol):
    """A connection that announced a large frame."""

    @property
    def client_host(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    def room_available(self) -> None: ...


class LargeFrames:
    """Counts the bytes of large frames by address. Loop thread only."""

    def __init__(
        self,
        max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
        max_address_bytes: int = DEFAULT_MAX_ADDRESS_BYTES,
        may_send: MaySend | None = None,
    ) -> None:
        """`max_request_bytes`: of a request without records (ottla.request.max.bytes).
        `max_address_bytes`: of all large requests of an address; one alone may be longer
        (ottla.address.request.max.bytes). `may_send` is called for requests that may be longer than
        `max_request_bytes`."""
        self.max_request_bytes = max_request_bytes
        self.max_address_bytes = max_address_bytes
        self._may_send = may_send
        self._bytes: dict[str, int] = {}
        self._waiting: dict[str, deque[LargeFrameSender]] = {}

    def may_receive(self, sender: LargeFrameSender, api_key: int, size: int) -> bool:
        """Whether a frame of this API may be so long, in so far as its listener allows it."""
        if size <= self.max_request_bytes:
            return True
        if api_key != ApiKey.PRODUCE and api_key not in _OF_CONTROLLERS:
            return False
        return self._may_send is None or self._may_send(sender, api_key)

    @property
    def has_waiters(self) -> bool:
        """A client waits because others of its address have all the bytes they may have."""
        return bool(self._waiting)

    def in_progress(self, host: str) -> int:
        """Bytes of the large requests of an address."""
        return self._bytes.get(host, 0)

    def has_room(self, host: str, size: int) -> bool:
        """Whether one more large frame may be received; an address may always have one."""
        used = self._bytes.get(host, 0)
        return not used or used + size <= self.max_address_bytes

    def reserve(self, host: str, size: int) -> None:
        """Count the bytes of a large frame that is about to be received."""
        self._bytes[host] = self._bytes.get(host, 0) + size

    def release(self, host: str, size: int) -> None:
        """A large frame is gone. Clients that waited look again, and wait again if their frames
        have no room yet."""
        used = self._bytes[host] - size
        if used:
            self._bytes[host] = used
        else:
            del self._bytes[host]
        waiting = self._waiting.pop(host, None)
        if waiting is not None:
            # All of them: each frame has a length of its own. A connection waits once at most.
            for sender in waiting:
                sender.room_available()

    def wait(self, sender: LargeFrameSender) -> None:
        """Call `sender.room_available()` once, when something of its address was released."""
        self._waiting.setdefault(sender.client_host, deque()).append(sender)
