"""Frames: four bytes of size (int32, big-endian) and as many bytes of content.

Sans-IO: bytes are fed in as they come, whole frames are taken out. Memory grows with what has
arrived, never with what a size promises.
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.primitives import Buffer

SIZE_BYTES = 4


class FrameSplitter:
    """Cuts a stream of bytes into frames of at most `max_frame_size` bytes each.

    The feeder decides how far ahead it reads: whatever is fed stays in memory until it is taken.
    """

    __slots__ = ("_buffer", "max_frame_size")

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> None:
        """Adds bytes that have arrived."""
        self._buffer += data

    def next_frame(self) -> bytearray | None:
        """The content of the next frame, the caller's own; None while it is not complete.

        Raises ProtocolError, as soon as the size is there, when it is negative or too large; the
        stream is of no use after that.
        """
        buffer = self._buffer
        if len(buffer) < SIZE_BYTES:
            return None
        size = self._checked_size()
        stop = SIZE_BYTES + size
        if len(buffer) < stop:
            return None
        if len(buffer) == stop:
            # The usual case: one request at a time. The buffer itself becomes the frame.
            self._buffer = bytearray()
            del buffer[:SIZE_BYTES]
            return buffer
        frame = buffer[SIZE_BYTES:stop]
        del buffer[:stop]
        return frame

    @property
    def buffered(self) -> int:
        """Bytes that were fed and not taken."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """Bytes that the frame at the front still lacks, as far as is known; 0 when it can be
        taken. Raises as `next_frame` does."""
        have = len(self._buffer)
        if have < SIZE_BYTES:
            return SIZE_BYTES - have
        return max(0, SIZE_BYTES + self._checked_size() - have)

    def peek(self, count: int) -> bytes:
        """At most `count` bytes at the front, to recognise the protocol of an unknown client."""
        return bytes(self._buffer[:count])

    def _checked_size(self) -> int:
        size = int.from_bytes(self._buffer[:SIZE_BYTES], "big", signed=True)
        if size < 0:
            raise ProtocolError(f"a frame cannot have {size} bytes", api="frame", field="size")
        if size > self.max_frame_size:
            raise ProtocolError(
                f"a frame of {size} bytes is larger than the {self.max_frame_size} allowed",
                api="frame",
                field="size",
            )
        return size
