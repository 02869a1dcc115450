"""Batches whose header, offsets, counts or fields do not fit: Kafka's error code for each."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pytest

from ottla.protocol.errors import error_name
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import assemble_batch
from ottla.protocol.records.compression import GZIP, NONE, ZSTD, codec_name, compress
from ottla.protocol.records.crc32c import crc32c
from tests.differential.asking import Closed, Pair

pytestmark = pytest.mark.kafka

TIME = 1_700_000_000_000
# Positions in a batch.
LENGTH, MAGIC, CRC, ATTRIBUTES = 8, 16, 17, 21


def varint(value: int) -> bytes:
    """ZigZag, as in records."""
    rest = (value << 1) ^ (value >> 63)
    rest &= (1 << 64) - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def record(
    offset_delta: int,
    *,
    timestamp_delta: int = 0,
    attributes: int = 0,
    key: bytes = varint(1) + b"k",
    value: bytes = varint(1) + b"v",
    headers: bytes = varint(0),
    more: bytes = b"",
) -> bytes:
    """One record of fields as they are given."""
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta)
    body += key + value + headers + more
    return varint(len(body)) + body


class Case(NamedTuple):
    name: str
    payload: bytes
    count: int = 3
    header: dict[str, Any] = {}  # noqa: RUF012  # never changed


GOOD = b"".join(record(delta) for delta in range(3))


def cases() -> list[Case]:
    """What is wrong with records, or with the header's view of them."""
    return [
        Case("good", GOOD),
        *(
            Case(f"offset deltas {deltas}", b"".join(map(record, deltas)))
            for deltas in ((0, 2, 1), (0, 0, 1), (0, 0, 0), (0, 2, 5), (-1, 0, 1), (5, 6, 7))
        ),
        Case("last offset delta too high", GOOD, 3, {"last_offset_delta": 5}),
        Case("last offset delta too low", GOOD, 3, {"last_offset_delta": 1}),
        Case("last offset delta negative", GOOD, 3, {"last_offset_delta": -1}),
        Case("count 0", b"", 0),
        Case("count 0 with records", GOOD, 0),
        Case("count -1", GOOD, -1),
        Case("count and delta too low", GOOD, 2),
        Case("count and delta too high", GOOD, 4),
        Case("base offset 7", GOOD, 3, {"base_offset": 7}),
        Case("base offset -1", GOOD, 3, {"base_offset": -1}),
        Case("leader epoch 9", GOOD, 3, {"leader_epoch": 9}),
        Case("control bit", GOOD, 3, {"attributes": 0x20}),
        Case("transactional without a producer", GOOD, 3, {"attributes": 0x10}),
        Case("LogAppendTime", GOOD, 3, {"attributes": 0x08}),
        Case("delete horizon bit", GOOD, 3, {"attributes": 0x40}),
        Case("reserved bits", GOOD, 3, {"attributes": 0x7F80}),
        Case("max timestamp too low", GOOD, 3, {"max_timestamp": TIME - 5}),
        Case("max timestamp -1", GOOD, 3, {"max_timestamp": -1}),
        Case("max timestamp in the future", GOOD, 3, {"max_timestamp": TIME * 3}),
        Case("base timestamp -1", GOOD, 3, {"base_timestamp": -1}),
        Case(
            "a record of the future",
            record(0, timestamp_delta=TIME * 2) + record(1) + record(2),
        ),
        Case("timestamp before 1970", record(0, timestamp_delta=-2 * TIME), 1),
        Case("record attributes", record(0, attributes=0x7F), 1),
        Case("key length -2", record(0, key=varint(-2)), 1),
        Case("value length -2", record(0, value=varint(-2)), 1),
        Case("null key and value", record(0, key=varint(-1), value=varint(-1)), 1),
        Case("header count -1", record(0, headers=varint(-1)), 1),
        Case("very many headers", record(0, headers=varint(2**31 - 1)), 1),
        Case("null header key", record(0, headers=varint(1) + varint(-1) + varint(-1)), 1),
        Case(
            "header key that is not UTF-8",
            record(0, headers=varint(1) + varint(1) + b"\xff" + varint(-1)),
            1,
        ),
        Case(
            "header value length -2",
            record(0, headers=varint(1) + varint(1) + b"h" + varint(-2)),
            1,
        ),
        Case("bytes after the headers", record(0, more=b"xy"), 1),
        Case("bytes after the records", GOOD + b"\0\0"),
        Case("record length 0", varint(0), 1),
        Case("record length -1", varint(-1), 1),
        Case("a varint of ten bytes", b"\xff" * 10, 1),
        Case("producer without a sequence", GOOD, 3, {"producer_id": 5, "producer_epoch": 0}),
        Case("producer epoch -1", GOOD, 3, {"producer_id": 5, "base_sequence": 0}),
        Case("producer id -2", GOOD, 3, {"producer_id": -2, "base_sequence": 0}),
        Case(
            "sequence 7 of an unknown producer",
            GOOD,
            3,
            {"producer_id": 5, "producer_epoch": 0, "base_sequence": 7},
        ),
    ]


def batch(case: Case, codec: int) -> bytes:
    values: dict[str, Any] = {
        "base_offset": 0,
        "last_offset_delta": case.count - 1,
        "base_timestamp": TIME,
        "max_timestamp": TIME,
        "attributes": 0,
        **case.header,
    }
    values["attributes"] |= codec
    payload = compress(codec, case.payload)
    return assemble_batch(payload, record_count=case.count, **values)


def patched(position: int, data: bytes, *, crc: bool = False) -> bytes:
    found = bytearray(batch(Case("good", GOOD), NONE))
    found[position : position + len(data)] = data
    if crc:
        found[CRC:ATTRIBUTES] = crc32c(memoryview(found)[ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(found)


def frames() -> list[tuple[str, bytes]]:
    """What is wrong with the bytes around records."""
    good = batch(Case("good", GOOD), NONE)
    length = len(good) - 12
    return [
        ("empty", b""),
        ("five bytes", b"\0" * 5),
        ("seventeen bytes", b"\0" * 17),
        ("zeros", b"\0" * 100),
        ("CRC", patched(CRC, b"\1\2\3\4")),
        *((f"magic {magic}", patched(MAGIC, bytes([magic]))) for magic in (0, 1, 3, 127, 255)),
        *(
            (f"codec {codec}", patched(ATTRIBUTES, b"\0" + bytes([codec]), crc=True))
            for codec in (5, 6, 7)
        ),
        ("length too short", patched(LENGTH, (length - 1).to_bytes(4, "big"))),
        ("length too long", patched(LENGTH, (length + 1).to_bytes(4, "big"))),
        ("length 0", patched(LENGTH, bytes(4))),
        ("length 13", patched(LENGTH, (13).to_bytes(4, "big"))),
        ("length -1", patched(LENGTH, b"\xff" * 4)),
        ("length 2 GB", patched(LENGTH, b"\x7f\xff\xff\xff")),
        ("two batches", good + good),
        ("a batch and some bytes", good + b"\0" * 30),
        ("a cut batch", good[:-1]),
    ]


def codes(pair: Pair, topic: str, records: bytes) -> tuple[str, str]:
    data = [TopicProduceData(topic, [PartitionProduceData(0, bytearray(records))])]
    found = []
    for response in pair.responses(ProduceRequest(None, 1, 10_000, data), 9):
        if isinstance(response, Closed):
            found.append("closed")
            continue
        code = response.responses[0].partition_responses[0].error_code  # type: ignore[attr-defined]
        found.append(error_name(code))
    return found[0], found[1]


def new_topic(pair: Pair) -> str:
    topic = f"inconsistent-{uuid.uuid4().hex[:8]}"
    pair.compare(CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], [])], 30_000), [4])
    return topic


# (Kafka, Ottla) where the two differ on purpose. Kafka stores uncompressed batches whose offsets
# are out of order, which breaks compaction and consumers, and has no error for compressed ones.
UNORDERED = {
    NONE: ("NONE", "INVALID_RECORD"),
    GZIP: ("UNKNOWN_SERVER_ERROR", "INVALID_RECORD"),
    ZSTD: ("UNKNOWN_SERVER_ERROR", "INVALID_RECORD"),
}


def expected(name: str, codec: int, kafka: str) -> tuple[str, str]:
    if name.startswith("offset deltas"):
        return UNORDERED[codec]
    if name == "header key that is not UTF-8":
        # Consumers in Python, which decode it, could not get beyond such a record.
        return "NONE", "INVALID_RECORD"
    if name == "a varint of ten bytes" and codec == NONE:
        return "UNKNOWN_SERVER_ERROR", "INVALID_RECORD"
    return kafka, kafka


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD], ids=codec_name)
def test_records_that_do_not_fit(pair: Pair, codec: int) -> None:
    topic = new_topic(pair)
    different = {}
    for case in cases():
        found = codes(pair, topic, batch(case, codec))
        if found != expected(case.name, codec, found[0]):
            different[case.name] = found
    assert not different


# Kafka has no error of its own for these, either.
UNEXPECTED = {
    "codec 5": "UNSUPPORTED_COMPRESSION_TYPE",
    "codec 6": "UNSUPPORTED_COMPRESSION_TYPE",
    "codec 7": "UNSUPPORTED_COMPRESSION_TYPE",
    "length 2 GB": "INVALID_RECORD",
}


def test_bytes_that_do_not_fit(pair: Pair) -> None:
    topic = new_topic(pair)
    different = {}
    for name, records in frames():
        found = codes(pair, topic, records)
        ottla = UNEXPECTED.get(name)
        if found != (found[0] if ottla is None else "UNKNOWN_SERVER_ERROR", ottla or found[0]):
            different[name] = found
    assert not different
