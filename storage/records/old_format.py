"""Rewrites appended batches as messages of magic 0 or 1: the formats before Kafka 0.11.

`message.format.version` requests them, and has an effect as long as the brokers speak a protocol
before 3.0 (`inter.broker.protocol.version`), as in Kafka. They hold no producer ids, no headers and
no leader epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from ottla.protocol.records.batch import LOG_APPEND_TIME, BatchHeader
from ottla.protocol.records.compression import NONE, ZSTD
from ottla.protocol.records.errors import UnsupportedCompressionError, UnsupportedFormatError
from ottla.protocol.records.legacy import build_message_set, iterate_legacy
from ottla.protocol.records.reader import read_entry
from ottla.protocol.records.record import Record

_OFFSET = Struct(">q")

Buffer = bytearray | memoryview


class Entry(NamedTuple):
    """A message or, compressed, several: where it is and which offsets it has."""

    position: int
    size: int
    first_offset: int
    last_offset: int
    max_timestamp: int


class _Part(NamedTuple):
    """The messages of one batch, with offsets from 0."""

    content: bytes
    codec: int
    record_count: int
    # Compressed messages of magic 0 have their offsets inside: these are built again.
    rebuild: Callable[[int], bytes] | None


class OldMessages(NamedTuple):
    """Messages without offsets in a log yet. `log_append_time` is -1 with timestamps of clients."""

    parts: list[_Part]
    log_append_time: int

    def assign(self, first_offset: int) -> tuple[bytearray, list[Entry]]:
        """The messages with offsets from `first_offset` on."""
        buffer = bytearray()
        entries = []
        for part in self.parts:
            content = part.content if part.rebuild is None else part.rebuild(first_offset)
            start, offset = len(buffer), first_offset
            buffer += content
            for position, header in iterate_legacy(content):
                last = first_offset + part.record_count - 1 if part.codec else offset
                _OFFSET.pack_into(buffer, start + position, last)
                entries.append(
                    Entry(
                        start + position, header.size_in_bytes, offset, last, header.max_timestamp
                    )
                )
                offset = last + 1
            first_offset += part.record_count
        return buffer, entries


def to_old_messages(
    records: Buffer,
    batches: list[tuple[int, BatchHeader]],
    magic: int,
    *,
    level_of: Callable[[int], int | None],
    log_append_time: int,
    max_decompressed_bytes: int,
) -> OldMessages:
    """`batches` of magic 2, which were validated, as messages of `magic`.

    `log_append_time` is their timestamp unless it is -1. Raises UnsupportedFormatError for producer
    ids and headers, UnsupportedCompressionError for zstd, and what reading raises.
    """
    parts = []
    for position, header in batches:
        if header.has_producer_id:
            raise UnsupportedFormatError(
                f"batches of idempotent producers cannot be stored as messages of magic {magic}"
            )
        if header.codec == ZSTD:
            raise UnsupportedCompressionError(f"zstd cannot be used with messages of magic {magic}")
        found = read_entry(
            records,
            position,
            header,
            check_crc=False,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        if any(record.headers for record in found):
            raise UnsupportedFormatError(
                f"records with headers cannot be stored as messages of magic {magic}"
            )
        parts.append(_part(found, magic, header.codec, level_of(header.codec), log_append_time))
    return OldMessages(parts, log_append_time)


def _part(
    records: list[Record], magic: int, codec: int, level: int | None, log_append_time: int
) -> _Part:
    def build(first_offset: int) -> bytes:
        return build_message_set(
            _numbered(records, first_offset),
            magic=magic,
            codec=codec,
            level=level,
            timestamp_type=LOG_APPEND_TIME if log_append_time >= 0 else 0,
            log_append_time=log_append_time,
        )

    rebuild = build if magic == 0 and codec != NONE else None
    return _Part(build(0), codec, len(records), rebuild)


def _numbered(records: list[Record], first_offset: int) -> Iterator[Record]:
    return (record._replace(offset=offset) for offset, record in enumerate(records, first_offset))
