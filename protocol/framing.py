"""Frames: four bytes of size (int32, big-endian) and as many bytes of content.

Sans-IO: bytes are fed in as they come, whole frames are taken out. Memory grows with what has
arrived, never with what a size promises.
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.primitives import Buffer

SIZE_BYTES = 4

# A frame of more bytes than LONG_BYTES, and no more than LONG_BUFFER_BYTES, is received into a
# buffer that is used again: new memory for each costs more, as the kernel clears its pages. Fetches
# of one partition return up to 1 MiB by default.
LONG_BYTES = 65536
LONG_BUFFER_BYTES = (1 << 20) + LONG_BYTES


class FrameSplitter:
    """Cuts a stream of bytes into frames of at most `max_frame_size` bytes each.

    The feeder decides how far ahead it reads: whatever is fed stays in memory until it is taken.
    """

    __slots__ = ("_buffer", "_filled", "_long", "_long_buffer", "max_frame_size")

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._buffer = bytearray()  # what is behind the long frame, if there is one
        self._long: memoryview | None = None  # a long frame that is being received
        self._filled = 0  # bytes of it
        self._long_buffer: bytearray | None = None

    def feed(self, data: Buffer) -> None:
        """Adds bytes that have arrived."""
        frame = self._long
        if frame is not None and self._filled < len(frame):
            data = memoryview(data)
            filled = self._filled
            self._filled = end = min(filled + len(data), len(frame))
            frame[filled:end] = data[: end - filled]
            data = data[end - filled :]
        self._buffer += data

    @property
    def room(self) -> memoryview | None:
        """Where the next bytes of a long frame may be written, instead of feeding them; None while
        no such frame is being received."""
        frame = self._long
        return None if frame is None or self._filled == len(frame) else frame[self._filled :]

    def received(self, count: int) -> None:
        """So many bytes were written to `room`."""
        self._filled += count

    def next_frame(self) -> bytearray | memoryview | None:
        """The content of the next frame, the caller's own; None while it is not complete.

        A view as long as the caller has it, or a view of it: then its memory may be used again.
        Raises ProtocolError, as soon as the size is there, when it is negative or too large; the
        stream is of no use after that.
        """
        long = self._long
        if long is not None:
            if self._filled < len(long):
                return None
            self._long = None
            return long
        buffer = self._buffer
        if len(buffer) < SIZE_BYTES:
            return None
        size = self._checked_size()
        stop = SIZE_BYTES + size
        if len(buffer) < stop:
            if LONG_BYTES < size <= LONG_BUFFER_BYTES:
                self._begin_long(size)
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
        return len(self._buffer) + (0 if self._long is None else self._filled + SIZE_BYTES)

    @property
    def missing(self) -> int:
        """Bytes that the frame at the front still lacks, as far as is known; 0 when it can be
        taken. Raises as `next_frame` does."""
        if self._long is not None:
            return len(self._long) - self._filled
        have = len(self._buffer)
        if have < SIZE_BYTES:
            return SIZE_BYTES - have
        return max(0, SIZE_BYTES + self._checked_size() - have)

    def peek(self, count: int) -> bytes:
        """At most `count` bytes at the front, to recognise the protocol of an unknown client."""
        return bytes(self._buffer[:count])

    def _begin_long(self, size: int) -> None:
        """Receives the rest of the frame at the front into the long buffer, if it is free."""
        long_buffer = self._long_buffer
        if long_buffer is None:
            # Its pages are no memory before something is written to them.
            long_buffer = self._long_buffer = bytearray(LONG_BUFFER_BYTES)
        elif not has_no_views(long_buffer):
            return
        received, self._buffer = self._buffer, bytearray()
        self._filled = len(received) - SIZE_BYTES
        self._long = memoryview(long_buffer)[:size]
        with memoryview(received) as whole:
            self._long[: self._filled] = whole[SIZE_BYTES:]

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


def has_no_views(buffer: bytearray) -> bool:
    """Whether no view of the buffer exists: only then Python changes its length."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
