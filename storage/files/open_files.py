"""Reference-counted descriptors, and a limit of how many storage keeps open.

An `OpenFile` closes its descriptor with the last reference: a `FileSlice` that is being sent keeps
the file open even if its segment is closed, deleted or evicted meanwhile.

`OpenFiles` is shared by the logs of a directory. Files are opened on first use.
Above the limit, those that were not used recently are closed (clock algorithm: one flag per holder,
so that using a file costs no more than setting the flag).

Reads that the page cache can serve do not block the event loop. Linux has such reads
(`RWF_NOWAIT`) for most file systems on local disks, but not for tmpfs, FUSE and network file
systems.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from ottla.storage.files.fs import FileSystem

# Well under the usual limit of 1,024 descriptors of a process, so that connections have enough.
DEFAULT_LIMIT = 512


class OpenFile:
    """A file descriptor that is closed with the last reference to this object."""

    __slots__ = ("_fs", "descriptor")

    def __init__(self, fs: FileSystem, path: str, flags: int) -> None:
        self.descriptor = -1
        self._fs = fs
        self.descriptor = fs.open(path, flags)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            self._fs.close(self.descriptor)
            self.descriptor = -1


class FileSlice:
    """A part of a log file: `length` bytes at `position` of the open descriptor `fd`.

    For `os.sendfile`; the descriptor stays open as long as the slice exists. The bytes never
    change: logs are append-only, compaction and retention replace or delete files, and truncation
    removes only offsets that no reader may see.
    """

    __slots__ = ("_file", "fd", "length", "position")

    def __init__(self, file: OpenFile, position: int, length: int) -> None:
        self._file = file
        self.fd = file.descriptor
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileSlice(fd={self.fd}, position={self.position}, length={self.length})"

    def read(self) -> bytes:
        """The bytes, for callers that cannot use sendfile. Safe in a worker thread."""
        return self._file._fs.pread(self.fd, self.length, self.position)

    def read_if_cached(self) -> bytearray | None:
        """The bytes, if the page cache is known to have all of them. Does not wait for the disk."""
        return read_if_cached(self.fd, self.length, self.position)

    def part(self, start: int, length: int) -> FileSlice:
        """`length` bytes from `start` on, which is counted from the begin of this slice."""
        return FileSlice(self._file, self.position + start, length)


class Holder(Protocol):
    """Something that opens its file on demand, so that the file may be closed at any time."""

    recently_used: bool

    def release(self) -> None: ...


class OpenFiles:
    """The holders of open files. Not thread-safe: used by the thread that owns the logs."""

    __slots__ = ("_hand", "_holders", "limit")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._holders: list[Holder] = []
        self._hand = 0

    def __len__(self) -> int:
        return len(self._holders)

    def admit(self, holder: Holder) -> None:
        """`holder` has opened its file. Releases another one above the limit."""
        holder.recently_used = True
        if len(self._holders) >= self.limit:
            self._evict()
        self._holders.append(holder)

    def forget(self, holder: Holder) -> None:
        """`holder` has closed its file by itself."""
        try:
            self._holders.remove(holder)
        except ValueError:
            return

    def _evict(self) -> None:
        # At most two rounds: the first clears the flags, the second finds a holder without one.
        holders = self._holders
        for _ in range(2 * len(holders)):
            if self._hand >= len(holders):
                self._hand = 0
            candidate = holders[self._hand]
            if candidate.recently_used:
                candidate.recently_used = False
                self._hand += 1
                continue
            # The last holder takes its index, which avoids shifting a long list.
            holders[self._hand] = holders[-1]
            holders.pop()
            candidate.release()
            return


# Memory of `is_cached`.
_PIECE_BYTES = 1 << 20


def knows_what_is_cached(descriptor: int) -> bool:
    """Whether `read_if_cached` can return bytes of this file."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except (OSError, AttributeError):  # no such file system, no preadv or no RWF_NOWAIT
        return False
    return True


def read_if_cached(descriptor: int, length: int, position: int) -> bytearray | None:
    """All these bytes of a file; None if the disk would be read, or if that is not known."""
    buffer = bytearray(length)
    try:
        read = os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)
    except (OSError, AttributeError):
        return None
    return buffer if read == length else None


def is_cached(descriptor: int, position: int, length: int) -> bool:
    """Whether the page cache is known to have all these bytes. Copies them: for a thread."""
    end = position + length
    return all(
        read_if_cached(descriptor, min(_PIECE_BYTES, end - start), start) is not None
        for start in range(position, end, _PIECE_BYTES)
    )


def drop_cached(descriptor: int, position: int, length: int) -> None:
    """Drop these bytes of a file from the page cache, if the system can: the next read of them
    comes from the disk."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)
