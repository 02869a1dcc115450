"""Frames that are longer than one read of a connection: their bounds and their buffers.

Kafka allows 100 MB for each request (`socket.request.max.bytes`) on each connection, whatever it
is. Only records need that, and the states of partitions that controllers send; any other request is
a few kilobytes, for a very large group a few megabytes. `LargeFrames` bounds how long a frame may
be; `ottla.broker.requests.memory_budget` counts what they take.

`FrameBuffers` uses a few buffers again and again. In new memory the kernel clears each page first,
which is a fifth of the processor time of a produce request of 1 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.protocol.framing import has_no_views
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.net.connection import Connection

DEFAULT_MAX_REQUEST_BYTES = 8 << 20

_OF_CONTROLLERS = frozenset((ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA))
_OF_BROKERS = _OF_CONTROLLERS | {
    ApiKey.FETCH,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ALTER_PARTITION,
}
# Consumers send these, too.
_OF_CONSUMERS = frozenset((ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH))

# Whether a client may send an API at all, as far as that is known before its request is decoded.
MaySend = Callable[["Connection", int], bool]


class LargeFrames:
    """The length limit of a frame that is longer than one read."""

    def __init__(
        self,
        max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
        may_send: MaySend | None = None,
    ) -> None:
        """`max_request_bytes`: of a request without records (ottla.request.max.bytes). `may_send`
        is called for requests that may be longer."""
        self.max_request_bytes = max_request_bytes
        self._may_send = may_send

    def may_receive(self, sender: Connection, api_key: int, size: int) -> bool:
        """Whether a frame of this API may be so long, in so far as its listener allows it."""
        if size <= self.max_request_bytes:
            return True
        if api_key != ApiKey.PRODUCE and api_key not in _OF_CONTROLLERS:
            return False
        return self._may_send is None or self._may_send(sender, api_key)

    def is_of_broker(self, sender: Connection, api_key: int) -> bool:
        """Whether a frame is of a broker or controller, as far as that is known before it is
        decoded: it came to their own listener, or is of an API that they use and its client has the
        right to send what they send. Without an authorizer everybody has: then a client that has
        fetched as a known broker is one."""
        if sender.listener.of_brokers:
            return True
        if api_key not in _OF_BROKERS or not sender.authenticated:
            return False
        if self._may_send is not None:
            return self._may_send(sender, ApiKey.UPDATE_METADATA)
        return sender.is_broker or api_key not in _OF_CONSUMERS


# Kafka's `max.message.bytes` and `max.request.size` are 1 MiB by default, and so are most large
# requests; longer ones get memory of their own.
BUFFER_BYTES = (1 << 20) + 65536
# A shorter frame is cheap to receive.
LONG_BYTES = 65536
# The memory that idle buffers may keep. If all are in use, a frame gets its own.
MAX_BUFFERS = 8

Frame = bytearray | memoryview


class FrameBuffers:
    """Returns views of a few buffers. A buffer is free again when no view of it exists any more: a
    caller that keeps records keeps their bytes."""

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def begin(self, received: bytearray, start: int, size: int) -> Frame:
        """The frame that begins at `start`, or what is received of it; if there is a buffer for a
        long frame, with room for the rest."""
        available = len(received) - start
        if available < size and size > LONG_BYTES:
            frame = self.take(size)
            if frame is not None:
                with memoryview(received) as whole:
                    frame[:available] = whole[start:]
                return frame
        return received[start : start + size]

    def take(self, size: int) -> memoryview | None:
        """A writable view of `size` bytes with any content; None if there is no such buffer."""
        if size > BUFFER_BYTES:
            return None
        for buffer in self._buffers:
            if has_no_views(buffer):
                return memoryview(buffer)[:size]
        if len(self._buffers) >= MAX_BUFFERS:
            return None
        # The kernel allocates its pages when they are written.
        buffer = bytearray(BUFFER_BYTES)
        self._buffers.append(buffer)
        return memoryview(buffer)[:size]
