"""The content of a file in a log directory, as values for JSON. Kafka's `DumpLogSegments`.

Read-only. A corrupt log does not raise: the last value describes the corrupt position. Of a file
that is set aside the valid batches behind it follow.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator

from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    MAGIC_POSITION,
    BatchHeader,
    read_header,
)
from ottla.protocol.records.compression import codec_name
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.storage.files.checkpoints import (
    read_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    read_properties,
)
from ottla.storage.files.fs import FileSystem, RealFileSystem, read_file
from ottla.storage.files.layout import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of_file,
)
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.files.set_aside import NOTE_FILE, SET_ASIDE_SUFFIX, original_name, read_note
from ottla.storage.index.offset_index import OffsetIndex
from ottla.storage.index.time_index import TimeIndex
from ottla.storage.index.txn_index import TransactionIndex
from ottla.storage.log.batch_scan import (
    CorruptLog,
    Place,
    check_checksum,
    place_at,
    walk_batches,
)
from ottla.storage.log.segment_file import SegmentFile
from ottla.storage.producer.producer_snapshot import decode_snapshot
from ottla.storage.records.batch_content import MAX_DECOMPRESSED_BYTES

Values = dict[str, object]
_CHECKPOINT_SUFFIX = "-offset-checkpoint"
_SNAPSHOT_BYTES_MAX = 256 << 20
_SEARCHED_BYTES = 1 << 20


def dump_file(
    path: str, fs: FileSystem | None = None, *, records: bool = False, payload: bool = False
) -> Iterator[Values]:
    """One value for each batch, entry, producer or line of the file, also if it is set aside.

    With `records` each batch lists its records, with `payload` these have keys, values and headers.
    Raises ValueError for an unknown file name, CorruptFile, OSError.
    """
    system = fs if fs is not None else RealFileSystem()
    name = os.path.basename(path)
    size = system.list_files(os.path.dirname(path) or ".").get(name)
    if size is None:
        raise FileNotFoundError(2, "no such file", path)
    name = original_name(name)
    base_offset = offset_of_file(name)
    if base_offset is not None and name.endswith(LOG_SUFFIX):
        file = SegmentFile(system, path, size, OpenFiles())
        return _batches(file, records, payload, path.endswith(SET_ASIDE_SUFFIX))
    if base_offset is not None and name.endswith(INDEX_SUFFIX):
        return _offset_entries(OffsetIndex(system, path, base_offset, size, size, OpenFiles()))
    if base_offset is not None and name.endswith(TIME_INDEX_SUFFIX):
        return _time_entries(TimeIndex(system, path, base_offset, size, size, OpenFiles()))
    if base_offset is not None and name.endswith(TXN_INDEX_SUFFIX):
        return _aborted(TransactionIndex(system, path, base_offset, size, size))
    if name.endswith(SNAPSHOT_SUFFIX):
        return _producers(system, path)
    return _small_file(system, path, name)


def _batches(file: SegmentFile, records: bool, payload: bool, resumes: bool) -> Iterator[Values]:
    """With `resumes` also the valid batches behind a damage: of a file that is set aside they are
    in no log."""
    position: int | None = 0
    while position is not None:
        try:
            for place, batch in walk_batches(file, position, file.size):
                values = _batch(file.path, place, batch, records, payload)
                yield values
                if resumes and not values["checksum_valid"]:
                    position = place.position  # its size may be wrong as well
                    break
            else:
                return
        except CorruptLog as damage:
            yield {"position": damage.position, "damaged": damage.reason}
            position = damage.position
        position = _next_batch(file, position + 1) if resumes else None


def _next_batch(file: SegmentFile, position: int) -> int | None:
    """Where the next batch of magic 2 with a valid checksum begins, None if there is none."""
    end = file.size
    while end - position >= BATCH_OVERHEAD:
        chunk = file.read(position, _SEARCHED_BYTES)
        found = chunk.find(2, MAGIC_POSITION)
        while found >= 0:
            start = found - MAGIC_POSITION
            try:
                place = place_at(file.path, chunk, start, position + start)
                if place.magic == 2 and place.position + place.size <= end:
                    batch = memoryview(file.read(place.position, place.size))
                    check_checksum(file.path, place, batch)
                    return place.position
            except CorruptLog:
                pass
            found = chunk.find(2, found + 1)
        # A header that begins in the last bytes is complete in the next chunk.
        position += max(1, len(chunk) - BATCH_OVERHEAD + 1)
    return None


def _batch(path: str, place: Place, batch: memoryview, records: bool, payload: bool) -> Values:
    try:
        check_checksum(path, place, batch)
        valid = True
    except CorruptLog:
        valid = False
    values: Values = {
        "position": place.position,
        "size": place.size,
        "magic": place.magic,
        "base_offset": place.base_offset,
        "last_offset": place.last_offset,
        "max_timestamp": place.max_timestamp,
        "checksum_valid": valid,
    }
    if place.magic == 2:
        values |= _header_values(read_header(batch))
    if records and valid:
        try:
            found = read_records(
                batch, include_control=True, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES
            )
            values["records"] = [_record(record, payload) for record in found]
        except RecordsError as error:
            values["records_damaged"] = str(error)
    return values


def _header_values(header: BatchHeader) -> Values:
    return {
        "leader_epoch": header.partition_leader_epoch,
        "record_count": header.record_count,
        "compression": codec_name(header.codec),
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": header.crc,
    }


def _record(record: Record, payload: bool) -> Values:
    values: Values = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key_bytes": -1 if record.key is None else len(record.key),
        "value_bytes": -1 if record.value is None else len(record.value),
    }
    if payload:
        values["key"] = _text(record.key)
        values["value"] = _text(record.value)
        values["headers"] = [[name, _text(value)] for name, value in record.headers]
    return values


def _text(content: bytes | None) -> object:
    """The text if the bytes are UTF-8, otherwise {"base64": ...}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _offset_entries(index: OffsetIndex) -> Iterator[Values]:
    for number in range(index.entries):
        offset, position = index.entry(number)
        yield {"offset": offset, "position": position}


def _time_entries(index: TimeIndex) -> Iterator[Values]:
    for number in range(index.entries):
        timestamp, offset = index.entry(number)
        yield {"timestamp": timestamp, "offset": offset}


def _aborted(index: TransactionIndex) -> Iterator[Values]:
    for entry in index.entries():
        yield entry._asdict()


def _producers(fs: FileSystem, path: str) -> Iterator[Values]:
    for entry in decode_snapshot(path, read_file(fs, path, _SNAPSHOT_BYTES_MAX)):
        yield {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "last_timestamp": entry.last_timestamp,
            "transaction_first_offset": entry.transaction_first_offset,
        }


def _small_file(fs: FileSystem, path: str, name: str) -> Iterator[Values]:
    if name == LEADER_EPOCH_CHECKPOINT:
        for epoch, start_offset in read_epoch_checkpoint(fs, path):
            yield {"leader_epoch": epoch, "start_offset": start_offset}
    elif name.endswith(_CHECKPOINT_SUFFIX):
        for (topic, partition), offset in read_offset_checkpoint(fs, path).items():
            yield {"topic": topic, "partition": partition, "offset": offset}
    elif name == PARTITION_METADATA:
        topic_id = read_partition_metadata(fs, path) or b""
        yield {"topic_id": base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()}
    elif name == NOTE_FILE:
        yield read_note(fs, path.rpartition("/")[0])._asdict()
    elif name == META_PROPERTIES:
        yield dict(read_properties(fs, path) or {})
    else:
        raise ValueError(f"{path} is not the name of a file in a log directory")
