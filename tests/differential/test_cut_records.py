"""A message or a batch that is cut off behind whole ones: both brokers append what is whole."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import pytest

from ottla.protocol.errors import error_name
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import compress
from ottla.protocol.records.legacy import encode_message
from tests.differential.asking import Pair
from tests.differential.test_append_settings import fetch, produce, stored

pytestmark = pytest.mark.kafka

TIME = 1_700_000_000_000
BATCH = build_batch([(TIME + n, b"k", b"value", []) for n in range(2)])
TOPICS = [{}, {"compression.type": "gzip"}, {"message.timestamp.type": "LogAppendTime"}]


def messages(magic: int, *offsets: int, attributes: int = 0) -> bytes:
    return b"".join(
        encode_message(offset, magic, attributes, TIME + offset, b"k%d" % offset, b"value")
        for offset in offsets
    )


def wrapper(magic: int, codec: int, inner: bytes, attributes: int = 0) -> bytes:
    value = compress(codec, inner, None, broken_lz4_checksum=codec == 3 and magic == 0)
    return encode_message(1, magic, codec | attributes, TIME, None, value)


def behind(rest: bytes) -> list[bytes]:
    sizes = (1, 8, 11, 12, 13, 16, 17, 18, 25, 26, 27, len(rest) - 1)
    return [rest[:size] for size in sizes if size < len(rest)]


def entry(size: int, magic: bytes, rest: int) -> bytes:
    return struct.pack(">qi", 3, size) + bytes(4) + magic + bytes(rest)


def cases() -> Iterator[tuple[str, int, bytes]]:
    """(name, version of Produce, records)"""
    invalid = [bytes(12), bytes(30), entry(-1, b"\0", 30), entry(13, b"\0", 30)]
    invalid += [entry(50, b"\5", 3), entry(50, b"\xff", 3)]
    for magic in (0, 1):
        plain, one = messages(magic, 0, 1), messages(magic, 2)
        for version in (0, 1, 2) if magic == 0 else (2,):
            for rest in behind(one):
                yield f"{magic} plain, {len(rest)} bytes", version, plain + rest
        for codec in (1, 2, 3):
            compressed = wrapper(magic, codec, plain)
            for rest in (*behind(compressed), *behind(one)):
                yield f"{magic} codec {codec}, {len(rest)} bytes", 2, compressed + rest
            for rest in behind(compressed):
                yield f"{magic} plain, {len(rest)} bytes of {codec}", 2, plain + rest
            yield f"{magic} codec {codec} junk", 2, encode_message(0, magic, codec, 0, None, b"jk")
            yield f"{magic} codec {codec} stamped", 2, wrapper(magic, codec, plain, 8)
        yield f"{magic} codec 4", 2, encode_message(0, magic, 4, TIME, None, compress(4, plain))
        yield f"{magic} stamped", 2, messages(magic, 0, 1, attributes=8)
        for rest in (*behind(messages(1 - magic, 2)), *behind(BATCH), *invalid):
            yield f"{magic} plain, other {len(rest)} bytes", 2, plain + rest
    for version in (2, 3, 9, 11):
        for rest in (*behind(BATCH), *behind(messages(1, 2)), *invalid):
            yield f"batch, {len(rest)} bytes", version, BATCH + rest


@pytest.mark.parametrize("settings", TOPICS, ids=lambda each: ",".join(each.values()) or "plain")
def test_what_is_whole_is_appended(pair: Pair, settings: dict[str, str]) -> None:
    topic = f"cut-{uuid.uuid4().hex[:8]}"
    configs = [CreatableTopicConfig(name=name, value=text) for name, text in settings.items()]
    pair.compare(CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], configs)], 30_000), [4])
    different = {}
    for name, version, records in cases():
        found = []
        for response in pair.responses(produce(topic, records), version):
            assert isinstance(response, ProduceResponse)
            row = response.responses[0].partition_responses[0]
            found.append((error_name(row.error_code), row.base_offset))
        expected = found[0]
        if expected[0] == "UNKNOWN_SERVER_ERROR":
            expected = "INVALID_RECORD", -1
        if found[1] != expected:
            different[f"{name}, version {version}"] = found
    assert not different
    kafka, ottla = (stored(response, TIME) for response in pair.responses(fetch(topic), 11))
    assert ottla == kafka


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_that_is_cut_off_alone_is_not_acknowledged(pair: Pair, magic: int) -> None:
    """Kafka acknowledges it, with offset -1, and appends nothing."""
    topic = f"cut-{uuid.uuid4().hex[:8]}"
    pair.compare(CreateTopicsRequest([CreatableTopic(topic, 1, 1, [], [])], 30_000), [4])
    for rest in behind(messages(magic, 0)):
        for response, code in zip(
            pair.responses(produce(topic, rest), 2), ("NONE", "INVALID_RECORD"), strict=True
        ):
            assert isinstance(response, ProduceResponse)
            row = response.responses[0].partition_responses[0]
            assert (error_name(row.error_code), row.base_offset) == (code, -1)
