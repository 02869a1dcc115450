"""Buffers for frames that are longer than one read; the same ones are used again.

A new buffer for each is new memory: the kernel clears each of its pages first, which is a fifth of
the processor time of a produce request of 1 MB.
"""

from __future__ import annotations

from ottla.protocol.framing import has_no_views

# Kafka's `max.message.bytes` and `max.request.size` are 1 MiB by default, and so are most large
# requests; longer ones get memory of their own.
BUFFER_BYTES = (1 << 20) + 65536
# A shorter frame is cheap to receive.
LONG_BYTES = 65536
# So much memory may stay in use for nothing. Frames that find all of them used get their own.
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
        # Its pages are no memory before something is written to them.
        buffer = bytearray(BUFFER_BYTES)
        self._buffers.append(buffer)
        return memoryview(buffer)[:size]
