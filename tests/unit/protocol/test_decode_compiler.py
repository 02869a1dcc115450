import pytest

from ottla.protocol import codec
from ottla.protocol.decode_compiler import DecodeCompiler, contains_records
from ottla.protocol.errors import ProtocolError
from ottla.protocol.layout import Layout
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.primitives import encode_unsigned_varint


def compiled(cls: type, version: int, *, flexible: bool = False) -> DecodeCompiler:
    return DecodeCompiler(Layout(cls, version, flexible=flexible))


def test_fixed_fields_and_the_length_behind_them_are_read_at_once() -> None:
    source = compiled(ProduceRequest, 9, flexible=True).source
    assert ".acks, o1.timeout_ms, n5 = unpack_hiB(b, p)" in source
    source = compiled(OffsetForLeaderEpochRequest, 3).source
    assert "= unpack_iii(b, p)" in source


def test_nothing_is_called_for_the_usual_value() -> None:
    """Every call of a helper stands behind a test that common bytes do not pass."""
    lines = compiled(ProduceRequest, 9, flexible=True).source.splitlines()
    for number, line in enumerate(lines):
        for helper in ("varint(", "string_length(", "read_tagged_fields(", "bad_count("):
            if helper in line:
                assert lines[number - 1].lstrip().startswith(("if ", "else:")), line


def test_counts_are_checked_against_the_smallest_element() -> None:
    # an empty name and an empty array of partitions: 2 + 4 bytes
    assert "n3 < 0 or n3 * 6 > end - p" in compiled(OffsetForLeaderEpochRequest, 0).source


def test_messages_without_records_are_read_from_bytes() -> None:
    assert "b = bytes(b)" in compiled(HeartbeatRequest, 0).source
    source = compiled(ProduceRequest, 3).source
    assert "b = bytes(b)" not in source
    assert "memoryview(b)[" in source


def test_contains_records() -> None:
    assert contains_records(Layout(ProduceRequest, 0, flexible=False))
    assert contains_records(Layout(FetchResponse, 12, flexible=True))
    assert not contains_records(Layout(ProduceResponse, 0, flexible=False))
    assert not contains_records(Layout(FetchRequest, 12, flexible=True))


def test_each_line_knows_its_field() -> None:
    compiler = compiled(ProduceRequest, 9, flexible=True)
    lines = compiler.source.splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "unpack_hiB" in line)
    assert compiler.line_fields[number] == (
        ("acks", "h", "o1.acks"),
        ("timeout_ms", "i", "o1.timeout_ms"),
        ("topic_data", "B", "n5"),
    )
    records = next(index for index, line in enumerate(lines, 1) if "memoryview(b)" in line)
    assert compiler.line_fields[records][0][0] == "topic_data.partition_data.records"


@pytest.mark.parametrize("size", [0, 1, 126, 127, 16382, 16383, 2**21 - 2, 2**21 - 1, 2**21])
def test_lengths_of_records_whose_varints_take_one_to_four_bytes(size: int) -> None:
    records = bytes(size)
    request = ProduceRequest(topic_data=[TopicProduceData("t", [PartitionProduceData(1, records)])])
    data = codec.encoder(ProduceRequest, 9)(request)
    assert encode_unsigned_varint(size + 1) + records in data
    assert codec.decoder(ProduceRequest, 9)(data, 0) == (request, len(data))
    for stop in range(14, 19):
        with pytest.raises(ProtocolError):
            codec.decoder(ProduceRequest, 9)(data[:stop], 0)
