"""The unsent bytes and file parts of one connection, in order.

Bytes go out together (`sendmsg`), large file parts by `os.sendfile`, so that their bytes never
enter our memory; short ones are copied and sent with the bytes around them. Nothing here waits:
bytes that the socket does not take stay, and the connection calls again when there is room. A file
part that is not in the page cache is not read here, which would block the loop as long as the disk
takes: `flush` returns COLD, and the connection has a worker thread read it first.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.broker.metrics.statistics import NetworkStatistics

if TYPE_CHECKING:
    from ottla.broker.requests.memory_pool import Client, Lease
    from ottla.storage.files.open_files import FileSlice

# How much one connection sends in one turn of the loop, so that others get theirs. At 2 GB/s this
# is half a millisecond; a bigger bound gains nothing, as a socket buffer holds a few MB at most.
# What consumers fetch of a partition by default, 1 MiB, goes out in one turn with all around it.
MAX_TURN_BYTES = (1 << 20) + 65536

# While small responses are sent too, such as those at the tail of a log, a connection that has more
# than BULK_BYTES to send has shorter turns: a small request waits for 0.06 ms of sendfile, not for
# 0.25. It costs one more turn of the loop, of about 20 us, for each of them.
SHARED_TURN_BYTES = 1 << 18
BULK_BYTES = 1 << 16

# This many turns stay short after a small response: 16 MiB, a few milliseconds.
SHARED_TURNS = 64

# Buffers in one sendmsg. Linux takes up to 1024; a fetch of many partitions has two or three for
# each of them.
MAX_BUFFERS = 256

# From this length on the first page of a file part is checked too, not only the last one: the
# kernel reads ahead in windows of 128 KiB, so that the last page suffices for a short part.
READ_AHEAD_BYTES = 131072

# Up to this length a file part is read and sent together with what stands around it: copying a few
# kilobytes costs less than the two more system calls that sendfile and the probe take.
SMALL_BYTES = 8192

# Up to this many bytes at the front of the output are copied and sent in one call if file parts are
# among them. That takes two thirds of the processor time of sendmsg, probe, sendfile and sendmsg
# for a part of 16 KB, and 0.85 of it for one of this length; a longer one gains nothing.
TOGETHER_BYTES = 65536

# Results of `flush`.
DONE = 0
BLOCKED = 1  # call again when the socket is writable, or in the next turn
COLD = 2  # have `warm` run in a thread, or a lazy part made, then call again

BYTES_LIKE = (bytes, bytearray, memoryview)

_CANNOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class FileTruncated(Exception):
    """A file ended before the part of it that we promised to send."""


def is_cached(fd: int, position: int, length: int) -> bool:
    """Whether a part of a file can probably be read without waiting for the disk.

    True where that is not known (tmpfs, network file systems, other systems than Linux).
    """
    return _page_is_cached(fd, position + length - 1) and (
        length < READ_AHEAD_BYTES or _page_is_cached(fd, position)
    )


def _page_is_cached(fd: int, position: int) -> bool:
    try:
        os.preadv(fd, [_probe], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _CANNOT_TELL:
            raise
    except AttributeError:  # no preadv or no RWF_NOWAIT on this system
        pass
    return True


_probe = bytearray(1)


def read_if_cached(part: FileSlice) -> bytearray | None:
    """The whole part, if it can be read without waiting for the disk, else None."""
    buffer = bytearray(part.length)
    return buffer if _read_cached(part.fd, buffer, part.position) else None


def _read_cached(fd: int, buffer: bytearray | memoryview, position: int) -> bool:
    """Fill the buffer, if that is possible without waiting for the disk."""
    try:
        return os.preadv(fd, [buffer], position, os.RWF_NOWAIT) == len(buffer)
    except (OSError, AttributeError):  # not cached, or not known; sendfile reads it then
        return False


def warm(fd: int, position: int, length: int) -> None:
    """Read a part of a file into the page cache. Blocks: for a worker thread."""
    buffer = bytearray(READ_AHEAD_BYTES)
    end = position + length
    # All of it at once, and no more: for reads in pieces Linux reads further and further ahead.
    with suppress(OSError, AttributeError):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)
    while position < end:
        read = os.preadv(fd, [buffer], position)
        if read == 0:
            return  # too short; sending it raises FileTruncated
        position += read


def join_if_small(parts: list[Any]) -> bytes | None:
    """All parts in one, if they are few bytes and can be read without waiting; else None."""
    if sum(map(len, parts)) > SMALL_BYTES:
        return None
    found = []
    for part in parts:
        if isinstance(part, LazyPart):
            return None
        data = part if isinstance(part, BYTES_LIKE) else read_if_cached(part)
        if data is None:
            return None
        found.append(data)
    return b"".join(found)


class TurnLimit:
    """The bytes of a large response that are sent in one turn, and a buffer for small ones. For all
    connections of a loop."""

    __slots__ = ("_shared_turns", "_small_bytes", "buffer", "large_bytes")

    def __init__(self) -> None:
        #: For what is copied to be sent at once; nothing in it outlives the call.
        self.buffer = memoryview(bytearray(TOGETHER_BYTES))
        #: Bytes of large responses that were sent, of `NetworkStatistics.bytes_out`.
        self.large_bytes = 0
        self._small_bytes = 0
        self._shared_turns = 0

    def next(self, bytes_out: int) -> int:
        """The limit of the turn that begins; `bytes_out` were sent in all by now."""
        small_bytes = bytes_out - self.large_bytes
        if small_bytes != self._small_bytes:
            self._small_bytes = small_bytes
            self._shared_turns = SHARED_TURNS
        elif self._shared_turns:
            self._shared_turns -= 1
        return SHARED_TURN_BYTES if self._shared_turns else MAX_TURN_BYTES


class LazyPart:
    """A part of a response that becomes bytes when the socket takes them; its length is known."""

    __slots__ = ("lease", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        #: The memory of the bytes that were made last.
        self.lease: Lease | None = None

    def __len__(self) -> int:
        return self.length

    async def next_bytes(self, client: Client) -> bytes:
        """The next bytes of it, one at least and what is left at most. `client` uses the memory.
        The last ones have been sent."""
        raise NotImplementedError

    def release(self) -> None:
        """The bytes that were made last are sent, or are not needed any more."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


class Output:
    """The parts of one or more responses. `add`, then `flush` until it says DONE."""

    __slots__ = (
        "_first",
        "_is_full",
        "_memory",
        "_parts",
        "_sent_of_first",
        "_size",
        "_sock",
        "_statistics",
        "_turn_limit",
        "_unsent",
        "_warm_until",
        "lazy_parts",
    )

    def __init__(
        self,
        sock: socket.socket,
        statistics: NetworkStatistics,
        turn_limit: TurnLimit | None = None,
    ) -> None:
        self._sock = sock
        self._statistics = statistics
        self._turn_limit = TurnLimit() if turn_limit is None else turn_limit
        self._size = 0  # of all parts, also those that are sent
        self._unsent = 0
        self._memory = 0  # of all parts that are in memory
        self._parts: list[Any] = []
        self._first = 0  # the first part not sent yet
        self._sent_of_first = 0  # how much of that part is sent
        self._warm_until = 0  # up to where that part is known to be cached
        self._is_full = False  # the socket took less than it was given
        #: Unsent parts; they count the memory of their bytes themselves.
        self.lazy_parts: list[LazyPart] = []

    def add(self, parts: list[Any]) -> None:
        """Append the parts of a response: bytes-like objects and file parts."""
        total = 0
        append = self._parts.append
        for part in parts:
            size = len(part)
            if not size:
                continue
            total += size
            if isinstance(part, BYTES_LIKE):
                self._memory += size
            elif isinstance(part, LazyPart):
                self.lazy_parts.append(part)
            elif size <= SMALL_BYTES:
                data = read_if_cached(part)
                if data is not None:
                    self._memory += size
                    part = data  # noqa: PLW2901  # from here on it is a part in memory
            append(part)
        self._size += total
        self._unsent += total

    @property
    def memory_bytes(self) -> int:
        """The parts in memory that are not sent, or in part; without those of lazy parts."""
        if not self.lazy_parts:
            return self._memory
        leases = (part.lease for part in self.lazy_parts)
        return max(self._memory - sum(lease.size for lease in leases if lease is not None), 0)

    def flush(self) -> int:
        """Send what the socket takes, up to a turn's share. Returns DONE, BLOCKED or COLD.

        Raises OSError when the connection is broken, FileTruncated when a file is too short.
        """
        statistics, limit = self._statistics, self._turn_limit
        is_large = self._size > BULK_BYTES
        left = limit.next(statistics.bytes_out) if is_large else MAX_TURN_BYTES
        parts = self._parts
        while self._first < len(parts):
            if left <= 0:
                return BLOCKED
            part = parts[self._first]
            try:
                if self._sent_of_first < self._warm_until and part.length > TOGETHER_BYTES:
                    sent = self._send_file(part, left)  # more of a long part of a file
                else:
                    sent = self._send_next(part, left)
            except (BlockingIOError, InterruptedError):
                return BLOCKED
            if sent < 0:
                return COLD
            left -= sent
            statistics.bytes_out += sent
            if is_large:
                limit.large_bytes += sent
            end = self._sent_of_first + sent
            if end < len(part):
                self._sent_of_first = end
                self._unsent -= sent
            else:
                self._advance(sent)
            if self._is_full:  # one more call would send nothing
                self._is_full = False
                return BLOCKED
        return DONE

    def _send_next(self, part: Any, limit: int) -> int:
        """Send the first part, and what can go with it. Returns -1 if it is cold."""
        is_buffer = isinstance(part, BYTES_LIKE)
        parts = self._parts
        # What may be a short part of a file: this one, or the next.
        other = self._first + is_buffer
        if (
            other < len(parts)
            and len(parts[other]) <= TOGETHER_BYTES
            and (sent := self._send_together(min(limit, TOGETHER_BYTES)))
        ):
            return sent
        if is_buffer:
            return self._send_buffers(limit)
        if isinstance(part, LazyPart) or (
            self._sent_of_first >= self._warm_until and not self._is_warm(part)
        ):
            return -1
        return self._send_file(part, limit)

    @property
    def lazy_part(self) -> LazyPart | None:
        """After COLD: the part whose `next_bytes` are to be `insert`ed; None for one to `warm`."""
        part = self._parts[self._first]
        if not isinstance(part, LazyPart):
            return None
        while (before := self.lazy_parts[0]) is not part:
            before.release()
            del self.lazy_parts[0]
        return part

    def insert(self, content: bytes) -> None:
        """The next bytes of the lazy part."""
        part = self._parts[self._first]
        part.length -= len(content)
        self._memory += len(content)
        if part.length:
            self._parts.insert(self._first, content)
        else:
            self._parts[self._first] = content

    def release(self) -> None:
        """Nothing more is sent."""
        for part in self.lazy_parts:
            part.release()
        self.lazy_parts.clear()

    def cold_part(self) -> tuple[FileSlice, int, int]:
        """After COLD: the file part, and the position and length in its file to `warm`."""
        part: FileSlice = self._parts[self._first]
        length = min(part.length - self._sent_of_first, MAX_TURN_BYTES)
        return part, part.position + self._sent_of_first, length

    def warmed(self) -> None:
        """The part that `cold_part` returned was read; it is not checked again."""
        self._warm_until = self._sent_of_first + self.cold_part()[2]

    def _is_warm(self, part: FileSlice) -> bool:
        _, position, length = self.cold_part()
        if not is_cached(part.fd, position, length):
            return False
        self._warm_until = self._sent_of_first + length
        return True

    def _send_together(self, limit: int) -> int:
        """Copy what stands at the front, `limit` bytes at most, and send it in one call. Returns 0,
        with nothing sent, if no part of a file is among it that is in the page cache."""
        buffer = self._turn_limit.buffer
        offset, size, has_files = self._sent_of_first, 0, False
        parts = self._parts
        for index in range(self._first, len(parts)):
            part = parts[index]
            if isinstance(part, BYTES_LIKE):
                length = len(part) - offset
                end = size + length
                if end > limit or length > SMALL_BYTES:
                    break
                buffer[size:end] = part[offset:] if offset else part
            else:
                end = size + part.length - offset
                if (
                    size + part.length > limit
                    or isinstance(part, LazyPart)
                    or not _read_cached(part.fd, buffer[size:end], part.position + offset)
                ):
                    break
                has_files = True
            size, offset = end, 0
        if not has_files:
            return 0
        sent = self._sock.send(buffer[:size])
        self._is_full = sent < size
        return sent

    def _send_buffers(self, limit: int) -> int:
        """Send the buffers in front of the next file part in one call, `limit` bytes at most."""
        buffers, more = self._buffers(MAX_BUFFERS)
        if self._size > limit:
            more = _cut(buffers, limit) or more
        # With more to come the kernel may wait for it and fill the packet.
        return self._sock.sendmsg(buffers, (), socket.MSG_MORE if more else 0)

    def _buffers(self, limit: int) -> tuple[list[Any], bool]:
        """The next buffers, and whether anything follows them."""
        parts, first = self._parts, self._first
        part = parts[first]
        buffers = [memoryview(part)[self._sent_of_first :] if self._sent_of_first else part]
        for end in range(first + 1, min(len(parts), first + limit)):
            part = parts[end]
            if not isinstance(part, BYTES_LIKE):
                return buffers, True
            buffers.append(part)
        return buffers, first + len(buffers) < len(parts)

    def _send_file(self, part: FileSlice, limit: int) -> int:
        offset = self._sent_of_first
        wanted = min(self._warm_until - offset, limit)
        sent = os.sendfile(self._sock.fileno(), part.fd, part.position + offset, wanted)
        if sent == 0:
            raise FileTruncated(f"{part.length - offset} bytes are missing")
        self._statistics.sendfile_bytes += sent
        self._is_full = sent < wanted
        return sent

    def _advance(self, sent: int) -> None:
        """Release the parts that are sent: the first one, and maybe more."""
        parts = self._parts
        self._unsent -= sent
        if not self._unsent:
            parts.clear()
            self._first = self._sent_of_first = self._memory = self._warm_until = 0
            return
        sent += self._sent_of_first
        first, end = self._first, len(parts)
        while first < end and sent >= (length := len(parts[first])):
            sent -= length
            if isinstance(parts[first], BYTES_LIKE):
                self._memory -= length
            parts[first] = None  # a file part keeps its segment open
            first += 1
        self._warm_until = 0
        self._first = first
        self._sent_of_first = sent


def _cut(buffers: list[Any], limit: int) -> bool:
    """Remove from the list what is beyond `limit` bytes; return whether there was something."""
    for index, buffer in enumerate(buffers):
        if len(buffer) > limit:
            buffers[index:] = [memoryview(buffer)[:limit]] if limit else []
            return True
        limit -= len(buffer)
    return False
