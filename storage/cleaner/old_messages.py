"""What compaction keeps of the messages of magic 0 and 1, with which an old log begins.

A newer record of a key removes them: without that, a key would come back once the tombstone that
deleted it is removed. Their own tombstones stay, for they have no field for the time until which
they are kept (Kafka takes the modification time of the file).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.records.legacy import build_message_set, read_legacy, read_legacy_header
from ottla.protocol.records.record import Record
from ottla.storage.cleaner.offset_map import OffsetMap, short_keys
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES


class KeptMessages(NamedTuple):
    """A message, or a compressed set of messages, that is kept or rewritten."""

    content: bytes | memoryview
    last_offset: int
    max_timestamp: int


def read_old(message: memoryview) -> list[Record]:
    """The records of a message, or of a compressed set of messages. Raises RecordsError."""
    return read_legacy(message, 0, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)


def filter_old(
    message: memoryview, offsets: OffsetMap, first_offset: int = 0
) -> KeptMessages | None:
    """The newest record of each key of `offsets` and all above its latest offset; None if there
    are none. Offsets, magic and codec do not change. Raises RecordsError.

    None below `first_offset`, where the segment begins: a replica that began within a compressed
    set has the whole of it, and the set would end below its segment if only those were left.
    """
    header = read_legacy_header(message)
    records = read_old(message)
    newest_of, known_up_to = offsets.offsets.get, offsets.latest_offset
    keys = short_keys([record.key for record in records])
    kept = [
        record
        for record, key in zip(records, keys, strict=True)
        if record.offset >= first_offset
        and (
            record.offset > known_up_to or (key is not None and record.offset >= newest_of(key, -1))
        )
    ]
    if len(kept) == len(records):
        return KeptMessages(message, header.last_offset, header.max_timestamp)
    if not kept:
        return None
    content = build_message_set(
        kept,
        magic=header.magic,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        log_append_time=header.max_timestamp,
    )
    rewritten = read_legacy_header(content)
    return KeptMessages(content, rewritten.last_offset, rewritten.max_timestamp)
