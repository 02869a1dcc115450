"""Batches with a valid checksum whose records cannot be read: they are refused with INVALID_RECORD.

No producer retries any of these errors.
"""

from __future__ import annotations

import uuid

import pytest

from ottla.protocol.errors import error_name
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import assemble_batch, build_batch
from ottla.protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, codec_name, compress
from tests.differential.asking import Pair

pytestmark = pytest.mark.kafka

TIME = 1_700_000_000_000
RECORDS = bytes(build_batch([(TIME + n, b"k%d" % n, b"v" * n, []) for n in range(10)])[61:])
ONE = bytes.fromhex("0e00000002610000")


def batch(codec: int, payload: bytes, count: int) -> bytes:
    return assemble_batch(
        payload,
        base_offset=0,
        last_offset_delta=count - 1,
        base_timestamp=TIME,
        max_timestamp=TIME + 9,
        record_count=count,
        attributes=codec,
    )


def damaged(codec: int) -> list[tuple[str, bytes]]:
    """(name, batch) of one codec."""
    longer = bytearray(RECORDS)
    longer[0] += 2
    key = bytearray(RECORDS)
    key[4] = 0x60  # the key is longer than its record
    found = [
        ("garbage", b"\xff" * 30, 1),
        ("fewer records than it says", compress(codec, RECORDS), 11),
        ("more records than it says", compress(codec, RECORDS), 9),
        ("very many", compress(codec, RECORDS), 2**31 - 1),
        ("a wrong length", compress(codec, bytes(longer)), 10),
        ("a wrong length of a key", compress(codec, bytes(key)), 10),
        ("cut", compress(codec, RECORDS[:-3]), 10),
        ("nothing", b"", 1),
    ]
    if codec:
        found.append(("cut stream", compress(codec, RECORDS)[:-9], 10))
    return [(name, batch(codec, payload, count)) for name, payload, count in found]


def codes(pair: Pair, topic: str, records: bytes) -> list[str]:
    found = []
    data = [TopicProduceData(topic, [PartitionProduceData(0, bytearray(records))])]
    for response in pair.responses(ProduceRequest(None, 1, 10_000, data), 9):
        code = response.responses[0].partition_responses[0].error_code
        found.append(error_name(code))
    return found


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD], ids=codec_name)
def test_damaged_records(pair: Pair, codec: int) -> None:
    topic = f"damaged-{uuid.uuid4().hex[:8]}"
    pair.compare(CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], [])], 30_000), [4])
    for name, records in damaged(codec):
        kafka, ottla = codes(pair, topic, records)
        if name == "very many" and codec:
            # So many are not counted: the batch is refused by the number alone.
            assert (kafka, ottla) == ("INVALID_RECORD", "MESSAGE_TOO_LARGE")
            continue
        assert ottla == "INVALID_RECORD", name
        # Kafka has no error of its own for what ends its decompressor, and stores a record whose
        # fields end before its length does, when it is compressed.
        assert kafka in (ottla, "UNKNOWN_SERVER_ERROR") or name == "a wrong length", name
