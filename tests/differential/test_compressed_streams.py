"""What is behind a compressed stream, or wrong with it: Ottla takes what Kafka takes.

What Kafka has no error for (UNKNOWN_SERVER_ERROR) is INVALID_RECORD here, on every kind of topic,
because no producer retries it.
"""

from __future__ import annotations

import gzip
import struct
import uuid
from collections.abc import Iterator

import cramjam
import lz4.frame
import pytest

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.records.builder import assemble_batch, build_batch
from ottla.protocol.records.compression import GZIP, LZ4, SNAPPY, ZSTD, codec_name, compress
from tests.differential.asking import Pair
from tests.differential.test_append_settings import content_of, fetch
from tests.differential.test_inconsistent_batches import codes

pytestmark = pytest.mark.kafka

TIME = 1_700_000_000_000
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
TOPICS = [
    {},
    {"cleanup.policy": "compact"},
    {"message.timestamp.before.max.ms": "1000000000000"},
    {"compression.type": "lz4"},
    {"compression.type": "zstd"},
]
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"hello"


def records(first: int, behind: int) -> bytes:
    rows = [(TIME + n, b"k%d" % n, b"value-%d" % n * 20, []) for n in range(behind)]
    whole = build_batch(rows)[61:]
    return bytes(whole[len(build_batch(rows[:first])) - 61 :] if first else whole)


ALL, FIRST, REST = records(0, 10), records(0, 5), records(5, 10)


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


def cases(codec: int) -> Iterator[tuple[str, bytes, int]]:
    """(name, payload, number of records)"""

    def packed(content: bytes) -> bytes:
        return gzip.compress(content, mtime=0) if codec == GZIP else compress(codec, content)

    good = packed(ALL)
    tails = [b"\0", b"x", b"\xff\xff\xff", b"abcd", bytes(8), b"garbage behind it", bytes(26)]
    tails += [bytes(100), b"\x1f\x8b\x08", b"\x1f\x8b\x08\0" + bytes(6), SKIPPABLE]
    tails += [b"\x1f\x8b\x08\0" + bytes(30), b"\x04\x22\x4d\x18", b"\x82SNAPPY\0", b"\0\0\0\5"]
    for tail in tails:
        yield f"{tail!r} behind it", good + tail, 10
    yield "two streams, all records", packed(FIRST) + packed(REST), 10
    yield "two streams, records of the first", packed(FIRST) + packed(REST), 5
    yield "an empty stream before it", packed(b"") + good, 10
    yield "an empty stream behind it", good + packed(b""), 10
    yield "bytes between streams", packed(FIRST) + b"\0\0" + packed(REST), 5
    yield "a second stream that is cut off", packed(FIRST) + packed(REST)[:-3], 10
    for size in range(1, 13):
        yield f"cut by {size}", good[:-size], 10
    yield "more records inside", packed(ALL + records(0, 1)), 10
    yield "zeros inside", packed(ALL + bytes(20)), 10
    yield "garbage", b"\xff" * 40, 10
    if codec == GZIP:
        yield "another checksum", good[:-8] + b"\1\2\3\4" + good[-4:], 10
        yield "another size", good[:-4] + b"\1\2\3\4", 10
        yield "another method", good[:2] + b"\7" + good[3:], 10
    if codec == SNAPPY:
        raw = bytes(cramjam.snappy.compress_raw(ALL))
        yield "a raw block", raw, 10
        yield "a raw block and a byte", raw + b"x", 10
        yield "an empty block", good + b"\0\0\0\1\0", 10
        yield "a block of -1 bytes", good + b"\xff\xff\xff\xff", 10
    if codec == LZ4:
        for name in ("content_checksum", "block_checksum"):
            more = {name: True}
            yield name, lz4.frame.compress(ALL, block_linked=False, store_size=False, **more), 10
        yield "no end mark", good[:-4], 10
        yield "a skippable frame before it", SKIPPABLE + good, 10


@pytest.mark.parametrize("settings", TOPICS, ids=lambda each: ",".join(each.values()) or "plain")
@pytest.mark.parametrize("codec", CODECS, ids=codec_name)
def test_streams(pair: Pair, codec: int, settings: dict[str, str]) -> None:
    topic = f"streams-{uuid.uuid4().hex[:8]}"
    configs = [CreatableTopicConfig(name=name, value=text) for name, text in settings.items()]
    pair.compare(CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], configs)], 30_000), [4])
    different = {}
    for name, payload, count in cases(codec):
        kafka, ottla = codes(pair, topic, batch(codec, payload, count))
        if ottla != ("INVALID_RECORD" if kafka == "UNKNOWN_SERVER_ERROR" else kafka):
            different[name] = kafka, ottla
    assert not different
    if "compression.type" not in settings:
        stored = [content_of(response) for response in pair.responses(fetch(topic), 11)]
        assert stored[1] == stored[0]


# A damaged frame behind a whole one: Kafka's decompressor does not read it to its end. librdkafka
# could not read such a batch.
@pytest.mark.parametrize("size", [1, 4, 5, 12, -1])
def test_a_zstd_frame_that_is_cut_off_behind_another_is_refused(pair: Pair, size: int) -> None:
    topic = f"streams-{uuid.uuid4().hex[:8]}"
    pair.compare(CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], [])], 30_000), [4])
    good = compress(ZSTD, ALL)
    found = codes(pair, topic, batch(ZSTD, good + good[:size], 10))
    assert found == ("NONE", "INVALID_RECORD")
