"""Building record batches of magic 2."""

from collections.abc import Iterable, Sequence

from ottla.protocol.records.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    CRC_POSITION,
    DELETE_HORIZON_MASK,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from ottla.protocol.records.compression import NONE, compress
from ottla.protocol.records.crc32c import crc32c
from ottla.protocol.records.record import Headers, NewRecord, Record
from ottla.protocol.records.varint import encode_varint, wrap_int64

# Numbers of up to two bytes, remembered as they come: most deltas and lengths are among them.
_KNOWN: dict[int, bytes] = {}
_KNOWN_BELOW = 8192  # which bounds the memory as well

_NULL_LENGTH = encode_varint(-1)


def _remember(value: int) -> bytes:
    encoded = encode_varint(value)
    if -_KNOWN_BELOW <= value < _KNOWN_BELOW:
        _KNOWN[value] = encoded
    return encoded


def encode_record(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> None:
    """Append one record as it stands inside a batch."""
    stamp = _KNOWN.get(timestamp_delta) or _remember(wrap_int64(timestamp_delta))
    delta = _KNOWN.get(offset_delta) or _remember(offset_delta)
    if key is None:
        key_length, key = _NULL_LENGTH, b""
    else:
        length = len(key)
        key_length = _KNOWN.get(length) or _remember(length)
    if value is None:
        value_length, value = _NULL_LENGTH, b""
    else:
        length = len(value)
        value_length = _KNOWN.get(length) or _remember(length)
    tail = encode_headers(headers) if headers else b"\0"
    # The first byte is for attributes, of which none are in use.
    body = b"".join((b"\0", stamp, delta, key_length, key, value_length, value, tail))
    length = len(body)
    out += _KNOWN.get(length) or _remember(length)
    out += body


def encode_headers(headers: Headers) -> bytes:
    """The count of headers and the headers of one record."""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varint(len(encoded)), encoded)
        if value is None:
            parts.append(_NULL_LENGTH)
        else:
            parts += (encode_varint(len(value)), value)
    return b"".join(parts)


def assemble_batch(
    payload: bytes | bytearray,
    *,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    attributes: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """A batch around records that are encoded, and compressed as set in `attributes`, already."""
    out = bytearray(BATCH_OVERHEAD)
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(payload) + BATCH_OVERHEAD - LOG_OVERHEAD,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    out += payload
    crc = crc32c(memoryview(out)[ATTRIBUTES_POSITION:])
    out[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return bytes(out)


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    codec: int = NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    timestamp_type: int = 0,
    log_append_time: int = NO_TIMESTAMP,
) -> bytes:
    """One batch of `(timestamp_ms, key, value, headers)` records with consecutive offsets.

    With `timestamp_type=LOG_APPEND_TIME` every reader sees `log_append_time` instead of the
    records' own timestamps. Raises ValueError when there are no records.
    """
    payload = bytearray()
    base_timestamp = max_timestamp = NO_TIMESTAMP
    count = 0
    for timestamp, key, value, headers in records:
        if count == 0:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        encode_record(payload, count, timestamp - base_timestamp, key, value, headers)
        count += 1
    if count == 0:
        raise ValueError("a record batch needs at least one record")
    attributes = codec
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
        max_timestamp = log_append_time
    if transactional:
        attributes |= TRANSACTIONAL_MASK
    if control:
        attributes |= CONTROL_MASK
    return assemble_batch(
        compress(codec, payload, level) if codec else payload,
        base_offset=base_offset,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
    )


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    codec: int | None = None,
    level: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The batch of `header` with only `records` left in it, as compaction writes it.

    Offsets stay as they are, and so do base offset, last offset, producer fields, leader epoch and
    flags, so that sequence numbers can still be derived; `records` may be empty. `codec`
    defaults to the batch's own; without records there is none. `delete_horizon_ms` is stored in
    place of the base timestamp, as KIP-534 does; None keeps the one the batch has.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    if not records:
        return _empty_batch(header, attributes)
    chosen = header.codec if codec is None else codec
    base_timestamp = records[0].timestamp
    if delete_horizon_ms is None:
        delete_horizon_ms = header.delete_horizon_ms
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_MASK
        base_timestamp = delete_horizon_ms
    max_timestamp = header.max_timestamp
    if header.timestamp_type != LOG_APPEND_TIME:
        max_timestamp = max(record.timestamp for record in records)
    payload = bytearray()
    for record in records:
        encode_record(
            payload,
            record.offset - header.base_offset,
            record.timestamp - base_timestamp,
            record.key,
            record.value,
            record.headers,
        )
    return assemble_batch(
        compress(chosen, payload, level) if chosen else payload,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(records),
        attributes=attributes | chosen,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
    )


def _empty_batch(header: BatchHeader, attributes: int) -> bytes:
    return assemble_batch(
        b"",
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.max_timestamp,
        max_timestamp=header.max_timestamp,
        record_count=0,
        attributes=attributes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
    )
