import pytest

from ottla.protocol import codec
from ottla.protocol.encode_compiler import EncodeCompiler
from ottla.protocol.layout import Layout
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.primitives import SHORT_ARRAY, RunPackers


def compiled(cls: type, version: int, *, flexible: bool = False) -> EncodeCompiler:
    return EncodeCompiler(Layout(cls, version, flexible=flexible))


def test_a_partition_of_metadata_is_packed_at_once() -> None:
    """Fixed fields, three lists of brokers and the empty tagged section: one call."""
    compiler = compiled(MetadataResponse, 12, flexible=True)
    packers = [value for value in compiler.names.values() if isinstance(value, RunPackers)]
    assert [packer.layout for packer in packers] == [("hiiiB", "i", "B", "i", "B", "i", "B")]


def test_old_versions_pack_their_runs_at_once_too() -> None:
    assert "pack_ihq(" in compiled(ProduceResponse, 0).source
    assert "pack_ihqqq(" in compiled(ProduceResponse, 5).source


@pytest.mark.parametrize("count", [0, 1, SHORT_ARRAY - 1, SHORT_ARRAY, 127, 128, 5000])
@pytest.mark.parametrize("version", [8, 12])
def test_long_and_short_arrays_give_the_same_format(count: int, version: int) -> None:
    nodes = list(range(count))
    partition = MetadataResponsePartition(0, 1, 2, 3, nodes, [4], nodes)
    message = MetadataResponse(topics=[MetadataResponseTopic(0, "t", partitions=[partition])])
    data = codec.encoder(MetadataResponse, version)(message)
    assert codec.decoder(MetadataResponse, version)(data, 0) == (message, len(data))


def test_a_long_message_of_unknown_tags_is_packed_piece_by_piece() -> None:
    partition = MetadataResponsePartition(0, 1, 2, 3, [1], [2], [], {5: b"five"})
    message = MetadataResponse(topics=[MetadataResponseTopic(0, "t", partitions=[partition])])
    data = codec.encoder(MetadataResponse, 12)(message)
    assert b"\x01\x05\x04five" in data
    assert codec.decoder(MetadataResponse, 12)(data, 0) == (message, len(data))


def test_each_line_knows_its_fields() -> None:
    compiler = compiled(ProduceResponse, 0)
    lines = compiler.source.splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "pack_ihq(" in line)
    fields = [field for field, _, _ in compiler.line_fields[number]]
    assert fields == [
        "responses.partition_responses.index",
        "responses.partition_responses.error_code",
        "responses.partition_responses.base_offset",
    ]
