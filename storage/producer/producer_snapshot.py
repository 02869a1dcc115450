"""`.snapshot`: the producers of a log, as of the offset in the file's name.

    version int16 (1) | crc uint32 | count int32 | entries

    entry: producer id int64 | producer epoch int16 | last sequence int32 | last offset int64 |
           offset delta int32 | timestamp int64 | coordinator epoch int32 |
           first offset of the open transaction int64

The CRC-32C covers everything after it. Only the last batch of a producer is stored: after a restart
only that one is recognised as a duplicate, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import starmap
from struct import Struct

from ottla.protocol.records.batch import NO_SEQUENCE, decrement_sequence
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.errors import CorruptFile
from ottla.storage.files.layout import offset_of_file
from ottla.storage.producer.producer_entry import NO_OFFSET, AppendedBatch, ProducerEntry

_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_CRC = Struct(">I")
_VERSION = 1
_COVERED_FROM = 6
# Fields of an entry.
_LAST_OFFSET, _TRANSACTION = 3, 7


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The content of a snapshot file."""
    body = bytearray()
    count = 0
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            NO_SEQUENCE if last is None else last.last_sequence,
            NO_OFFSET if last is None else last.last_offset,
            0 if last is None else last.last_offset - last.first_offset,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        count += 1
    content = bytearray(_HEAD.pack(_VERSION, 0, count) + body)
    _CRC.pack_into(content, 2, crc32c(memoryview(content)[_COVERED_FROM:]))
    return bytes(content)


def decode_snapshot(path: str, content: bytes) -> Iterator[ProducerEntry]:
    """The entries of a snapshot file, which is checked first as a whole.

    Raises CorruptFile, also if an offset is not below that in the name of the file: the snapshot
    is of another log.
    """
    if len(content) < _HEAD.size:
        raise CorruptFile(path, f"{len(content)} bytes are too short for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise CorruptFile(path, f"unknown producer snapshot version {version}")
    if crc != crc32c(memoryview(content)[_COVERED_FROM:]):
        raise CorruptFile(path, "the checksum of the producer snapshot does not match")
    if len(content) != _HEAD.size + count * _ENTRY.size:
        raise CorruptFile(path, f"{len(content)} bytes do not match the count of {count} producers")
    end = offset_of_file(path.rpartition("/")[2])
    if end is not None:
        for at, fields in enumerate(_ENTRY.iter_unpack(content[_HEAD.size :])):
            if max(fields[_LAST_OFFSET], fields[_TRANSACTION]) >= end or fields[0] < 0:
                raise CorruptFile(path, f"entry {at}, {fields}, is not of a log before {end}")
    return starmap(_entry, _ENTRY.iter_unpack(content[_HEAD.size :]))


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_first_offset: int,
) -> ProducerEntry:
    entry = ProducerEntry(producer_id)
    entry.epoch = epoch
    entry.coordinator_epoch = coordinator_epoch
    entry.last_timestamp = timestamp
    entry.transaction_first_offset = max(transaction_first_offset, NO_OFFSET)
    if last_offset >= 0:
        first_sequence = NO_SEQUENCE
        if last_sequence != NO_SEQUENCE:
            first_sequence = decrement_sequence(last_sequence, offset_delta)
        first_offset = last_offset - offset_delta
        batch = AppendedBatch(first_sequence, last_sequence, first_offset, last_offset, timestamp)
        entry.batches.append(batch)
    return entry
