"""Reads that the page cache of the operating system can serve, so that the event loop never waits.

Linux has them (`RWF_NOWAIT`), for most file systems on local disks. It has none for tmpfs, FUSE and
network file systems.
"""

from __future__ import annotations

import contextlib
import os

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
    """Drops these bytes of a file from the page cache, if the system can: the next read of them
    comes from the disk."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)
