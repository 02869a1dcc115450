"""Iterating over the batches of a log file, with or without their records.

Works on every magic: old logs may begin with segments of messages of magic 0 and 1. A message of an
old magic counts as a batch of its own; its offset (for a compressed one: the offset of its last
inner message) is both its first and its last offset here.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from ottla.protocol.records.batch import ATTRIBUTES_POSITION, BATCH_OVERHEAD, LOG_OVERHEAD
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.errors import StorageError
from ottla.storage.log.segment_file import PinnedFile, SegmentFile

# Up to the max timestamp: base offset, length, leader epoch, magic, crc, attributes, last offset
# delta, base timestamp, max timestamp.
_FRONT = Struct(">qiibIhiqq")
_unpack_front = _FRONT.unpack_from
_LENGTH_MIN = BATCH_OVERHEAD - LOG_OVERHEAD
# offset, length, crc, magic, attributes, timestamp (magic 1 only)
_LEGACY = Struct(">qiIbbq")
_LEGACY_HEADER_BYTES = 26
_LEGACY_LENGTH_MIN = 14
_LEGACY_CRC_FROM = 16

# Headers of small batches are read in windows of the size between two index entries. For large
# batches, and for the first one before its size is known, a larger read would be wasted.
WINDOW_BYTES = 4096 + BATCH_OVERHEAD
FIRST_WINDOW_BYTES = 256
# Whole batches are read in chunks of this size, or of one batch if that is larger.
CHUNK_BYTES = 1 << 20


class Place(NamedTuple):
    """The position of a batch and the header fields that lookups by offset or time need."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    magic: int


class CorruptLog(StorageError):
    """No complete and valid batch begins at `position`."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}, position {position}: {reason}")
        self.position = position
        self.reason = reason


def place_at(path: str, buffer: bytes, at: int, position: int) -> Place:
    """The batch whose header is at `at` of the buffer and at `position` of the file.

    Only the header has to be in the buffer. Raises CorruptLog.
    """
    available = len(buffer) - at
    if available >= BATCH_OVERHEAD:
        offset, length, epoch, magic, _, _, delta, _, newest = _unpack_front(buffer, at)
        if magic == 2:
            if length < _LENGTH_MIN or offset < 0 or delta < 0:
                raise CorruptLog(path, position, "the batch header is invalid")
            size = length + LOG_OVERHEAD
            return Place(position, size, offset, offset + delta, newest, epoch, 2)
    if available >= _LEGACY_HEADER_BYTES:
        offset, length, _, magic, _, timestamp = _LEGACY.unpack_from(buffer, at)
        if magic in (0, 1) and length >= _LEGACY_LENGTH_MIN and offset >= 0:
            newest = timestamp if magic == 1 else -1
            return Place(position, length + LOG_OVERHEAD, offset, offset, newest, -1, magic)
    raise CorruptLog(path, position, f"{available} bytes that are not a batch")


def walk(file: SegmentFile, position: int, end: int) -> Iterator[Place]:
    """The batches from `position` to `end`. Reads headers only.

    A batch must begin at `position`. Raises CorruptLog at a position where none begins, or if one
    extends beyond `end`.
    """
    while position < end:
        place = find(file, position, end, -1)
        if place is None:
            return
        yield place
        position += place.size


def find(file: SegmentFile, position: int, end: int, offset: int) -> Place | None:
    """The first batch in [position, end) that ends at or after `offset`, None if there is none.

    The hot part of every fetch: small reads for large batches, one read for the bytes between two
    index entries for small ones. Raises CorruptLog as `walk`.
    """
    descriptor = file.file().descriptor
    read = file.pread
    window = b""
    window_start = position
    window_bytes = FIRST_WINDOW_BYTES
    while position < end:
        at = position - window_start
        if len(window) - at < BATCH_OVERHEAD:
            room = end - position
            window = read(descriptor, window_bytes if window_bytes < room else room, position)
            window_start, at = position, 0
        if len(window) - at >= BATCH_OVERHEAD:
            base, length, epoch, magic, _, _, delta, _, newest = _unpack_front(window, at)
        else:
            magic = -1
        if magic == 2 and length >= _LENGTH_MIN and base >= 0 and delta >= 0:
            size = length + LOG_OVERHEAD
            last = base + delta
        else:
            _, size, base, last, newest, epoch, magic = place_at(file.path, window, at, position)
        if position + size > end:
            raise CorruptLog(file.path, position, f"a batch of {size} bytes is truncated")
        if last >= offset:
            return Place(position, size, base, last, newest, epoch, magic)
        position += size
        window_bytes = WINDOW_BYTES if size < FIRST_WINDOW_BYTES * 4 else FIRST_WINDOW_BYTES
    return None


def walk_batches(
    file: SegmentFile | PinnedFile, position: int, end: int
) -> Iterator[tuple[Place, memoryview]]:
    """Like `walk`, with the bytes of each batch. Does not verify checksums: `check_checksum`."""
    path = file.path
    chunk = b""
    chunk_start = position
    while position < end:
        at = position - chunk_start
        if len(chunk) - at < BATCH_OVERHEAD:
            chunk = file.read(position, min(CHUNK_BYTES, end - position))
            chunk_start, at = position, 0
        place = place_at(path, chunk, at, position)
        if position + place.size > end:
            raise CorruptLog(path, position, f"a batch of {place.size} bytes is truncated")
        if len(chunk) - at < place.size:
            chunk = file.read(position, min(max(CHUNK_BYTES, place.size), end - position))
            chunk_start, at = position, 0
            if len(chunk) < place.size:
                raise CorruptLog(path, position, f"the file ends at {position + len(chunk)}")
        yield place, memoryview(chunk)[at : at + place.size]
        position += place.size


def check_checksum(path: str, place: Place, batch: memoryview) -> None:
    """Raise CorruptLog when the stored CRC does not match the bytes."""
    if place.magic == 2:
        stored = int.from_bytes(batch[ATTRIBUTES_POSITION - 4 : ATTRIBUTES_POSITION], "big")
        computed = crc32c(batch[ATTRIBUTES_POSITION:])
    else:
        stored = int.from_bytes(batch[LOG_OVERHEAD:_LEGACY_CRC_FROM], "big")
        computed = crc32(batch[_LEGACY_CRC_FROM:])
    if stored != computed:
        raise CorruptLog(
            path, place.position, f"stored checksum {stored:#010x}, computed {computed:#010x}"
        )
