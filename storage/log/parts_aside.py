"""Setting parts of a log aside: whole segments, or the end of one (`storage/files/set_aside.py`).

What is cut off a log without the request of a client or an operator is kept in the directory of the
partition. A whole segment is renamed. The end of a segment is copied before the segment is
truncated, so there is a moment with two copies of it and none without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.protocol.records.batch import BATCH_OVERHEAD, HEADER, LOG_OVERHEAD, MAGIC_POSITION
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.files.fs import CREATE_EMPTY, READ_ONLY, FileSystem, write_fully
from ottla.storage.files.set_aside import Reason, aside_name, of_files, reason_of_file
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_file import PinnedFile, SegmentFile

if TYPE_CHECKING:
    from ottla.storage.log.local_log import PartitionDirectory

logger = logging.getLogger("ottla.storage")

_CHUNK_BYTES = 1 << 20
_LENGTH_MIN = BATCH_OVERHEAD - LOG_OVERHEAD
_CRC_FROM = 21
# compression (3 bits), timestamp type, transactional, control, delete horizon
_ATTRIBUTES = 0x7F
# Bytes whose checksums are computed in search of a batch, as a multiple of what is searched: what
# looks like headers of large batches must not delay a start by hours.
_CHECKSUM_BUDGET = 4
# Places that are looked at, about 5 s: one byte of 256 in random bytes.
_PLACES_MAX = 2_000_000

_unpack = HEADER.unpack_from


def set_segment_aside(
    directory: PartitionDirectory,
    segment: Segment,
    reason: Reason,
    detail: str,
    remove: Callable[[str], None],
    names: dict[str, int] | None = None,
) -> None:
    """Rename the log file of a segment that is not in use any more, and remove its indexes.

    `names`: the files of the directory, read if they are not given. Not durable: the caller syncs
    the directory. Raises OSError.
    """
    fs, path = directory.fs, segment.log.path
    segment.release()
    folder, _, name = path.rpartition("/")
    target = aside_name(fs.list_files(folder) if names is None else names, name, reason)
    fs.replace(path, f"{folder}/{target}")
    for index in segment.paths():
        if index != path and fs.exists(index):
            remove(index)
    note_part(directory, f"{folder}/{target}", segment.size, detail)


def note_part(directory: PartitionDirectory, path: str, size: int, detail: str) -> None:
    """Log that a part of a log is set aside in `path`, and add it to the list of the disk."""
    folder, _, name = path.rpartition("/")
    logger.error(
        "%s: Set aside %d bytes in %s: %s; see `ottla log set-aside list`",
        directory.name,
        size,
        path,
        detail,
    )
    directory.log_directory.note_set_aside(
        of_files([name], folder, directory.topic, directory.partition)
    )


def copy_end_aside(
    fs: FileSystem,
    file: SegmentFile | PinnedFile,
    position: int,
    end: int,
    reason: Reason,
) -> str:
    """Copy the bytes of a log file from `position` to `end`. Returns the path of the copy.

    The copy is durable when this returns. One that a crash left behind, with the same bytes, is
    used again. May run in a worker thread. Raises OSError, with nothing copied.
    """
    folder, _, name = file.path.rpartition("/")
    names = fs.list_files(folder)
    known = _known_copy(fs, file, position, end, reason, names)
    if known is not None:
        fs.sync_directory(folder)
        return known
    target = f"{folder}/{aside_name(names, name, reason)}"
    temporary = f"{target}.tmp"  # the next start deletes it
    try:
        descriptor = fs.open(temporary, CREATE_EMPTY)
        try:
            for at in range(position, end, _CHUNK_BYTES):
                chunk = file.read(at, min(_CHUNK_BYTES, end - at))
                write_fully(fs, descriptor, chunk, at - position)
            fs.sync(descriptor)
        finally:
            fs.close(descriptor)
        fs.replace(temporary, target)
        fs.sync_directory(folder)
    except OSError:
        for left in (temporary, target):
            with suppress(OSError):
                fs.remove(left)
        raise
    return target


def _known_copy(
    fs: FileSystem,
    file: SegmentFile | PinnedFile,
    position: int,
    end: int,
    reason: Reason,
    names: dict[str, int],
) -> str | None:
    folder, _, own = file.path.rpartition("/")
    for name, size in names.items():
        is_candidate = name.startswith(f"{own}.") and size == end - position
        if not is_candidate or name.endswith(".tmp") or reason_of_file(name) is not reason:
            continue
        descriptor = fs.open(f"{folder}/{name}", READ_ONLY)
        try:
            if all(
                fs.pread(descriptor, min(_CHUNK_BYTES, end - at), at - position)
                == file.read(at, min(_CHUNK_BYTES, end - at))
                for at in range(position, end, _CHUNK_BYTES)
            ):
                return f"{folder}/{name}"
        finally:
            fs.close(descriptor)
    return None


def holds_records(file: SegmentFile, position: int = 0) -> bool:
    """Whether a complete batch with the right checksum begins at or behind `position`.

    It may begin anywhere: what is before it may be damaged. True as well if that would take too
    long to find out. Of messages of magic 0 and 1, which have no header to search for, it is only
    known that there is more than zeros. Raises OSError.
    """
    end = file.size
    budget = _CHECKSUM_BUDGET * (end - position) + _CHUNK_BYTES
    if _begins_with_old_magic(file) and not _is_zero(file, position):
        return True
    at, places = position, _PLACES_MAX
    while end - at >= BATCH_OVERHEAD:
        chunk = file.read(at, _CHUNK_BYTES)
        places -= chunk.count(b"\x02")
        if places < 0:
            return True
        for start in _candidates(chunk):
            length = _unpack(chunk, start)[1]
            stop = at + start + LOG_OVERHEAD + length
            if stop > end:
                continue
            budget -= length
            if budget < 0 or _has_checksum(file, at + start, stop, _unpack(chunk, start)[4]):
                return True
        # A header that begins in the last bytes is complete in the next chunk.
        at += max(1, len(chunk) - BATCH_OVERHEAD + 1)
    return False


def _candidates(chunk: bytes) -> Iterable[int]:
    """Where a header of magic 2 may begin, in order."""
    found = chunk.find(b"\x02", MAGIC_POSITION)
    last = len(chunk) - BATCH_OVERHEAD
    while 0 <= found - MAGIC_POSITION <= last:
        start = found - MAGIC_POSITION
        base, length, _, _, _, attributes, delta, *_ = _unpack(chunk, start)
        if base >= 0 and delta >= 0 and length >= _LENGTH_MIN and not attributes & ~_ATTRIBUTES:
            yield start
        found = chunk.find(b"\x02", found + 1)


def _has_checksum(file: SegmentFile, start: int, stop: int, stored: int) -> bool:
    computed = 0
    for at in range(start + _CRC_FROM, stop, _CHUNK_BYTES):
        computed = crc32c(file.read(at, min(_CHUNK_BYTES, stop - at)), computed)
    return computed == stored


def _begins_with_old_magic(file: SegmentFile) -> bool:
    header = file.read(0, MAGIC_POSITION + 1)
    if len(header) <= MAGIC_POSITION or header[MAGIC_POSITION] >= 2:
        return False
    return 0 < int.from_bytes(header[8:LOG_OVERHEAD], "big") <= file.size


def _is_zero(file: SegmentFile, position: int) -> bool:
    zeros = bytes(_CHUNK_BYTES)
    return all(
        chunk == zeros[: len(chunk)]
        for at in range(position, file.size, _CHUNK_BYTES)
        for chunk in (file.read(at, _CHUNK_BYTES),)
    )
