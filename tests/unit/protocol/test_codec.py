import pytest

from ottla.protocol import codec
from ottla.protocol.errors import ProtocolError, UnsupportedVersionError
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.stored.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from ottla.protocol.messages.stored.offset_commit import OffsetCommitKey, OffsetCommitValue


class FilePart:
    """Like a slice of a log segment: nothing but a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def produce(records: object) -> ProduceRequest:
    partition = PartitionProduceData(3, records)  # type: ignore[arg-type]  # tests pass all kinds
    return ProduceRequest(None, -1, 30_000, [TopicProduceData("orders", [partition])])


def fetch_response(*records: object) -> FetchResponse:
    partitions = [
        PartitionData(partition_index=index, records=item)  # type: ignore[arg-type]  # as above
        for index, item in enumerate(records)
    ]
    return FetchResponse(responses=[FetchableTopicResponse("orders", partitions=partitions)])


def test_functions_are_compiled_once() -> None:
    assert codec.decoder(FetchRequest, 4) is codec.decoder(FetchRequest, 4)
    assert codec.raw_encoder(FetchRequest, 4) is codec.raw_encoder(FetchRequest, 4)
    assert codec.decoder(FetchRequest, 4) is not codec.decoder(FetchRequest, 5)


@pytest.mark.parametrize("version", [-1, 18, 99])
def test_versions_without_a_definition(version: int) -> None:
    for make in (codec.decoder, codec.encoder, codec.parts_encoder):
        with pytest.raises(UnsupportedVersionError, match="versions 0 to 17 only") as caught:
            make(FetchRequest, version)
        assert (caught.value.api, caught.value.version) == ("FetchRequest", version)


def test_records_are_views_of_the_callers_buffer() -> None:
    data = bytearray(codec.encoder(ProduceRequest, 9)(produce(b"0123456789")))
    message, _ = codec.decoder(ProduceRequest, 9)(data, 0)
    records = message.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0] = ord("X")
    assert b"X123456789" in data


@pytest.mark.parametrize("records", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_records_of_any_bytes_type_are_encoded(records: object) -> None:
    data = codec.encoder(ProduceRequest, 3)(produce(records))
    assert data.endswith(b"\x00\x00\x00\x03abc")


def test_parts_pass_on_what_is_not_bytes() -> None:
    first, second = FilePart(1000), FilePart(70_000)
    parts = codec.parts_encoder(FetchResponse, 4)(fetch_response(first, b"abc", second))
    assert [type(part) for part in parts] == [bytes, FilePart, bytes, FilePart]
    assert parts[1] is first
    assert parts[3] is second
    whole = b"".join(part if isinstance(part, bytes) else bytes(len(part)) for part in parts)
    message, position = codec.decoder(FetchResponse, 4)(whole, 0)
    assert position == len(whole)
    sizes = [len(p.records or b"") for p in message.responses[0].partitions]
    assert sizes == [1000, 3, 70_000]


def test_parts_of_a_flexible_version_end_with_the_tagged_sections() -> None:
    parts = codec.parts_encoder(FetchResponse, 12)(fetch_response(FilePart(5)))
    assert [len(part) for part in parts][1:] == [5, 3]
    assert parts[2] == b"\x00\x00\x00"


def test_parts_of_a_message_of_bytes_are_one() -> None:
    message = fetch_response(b"abc")
    assert codec.parts_encoder(FetchResponse, 4)(message) == [
        codec.encoder(FetchResponse, 4)(message)
    ]


def test_the_plain_encoder_refuses_file_parts() -> None:
    with pytest.raises(ProtocolError, match="FilePart, which only parts_encoder"):
        codec.encoder(FetchResponse, 4)(fetch_response(FilePart(5)))


def test_join_parts_leaves_no_empty_parts() -> None:
    part = FilePart(1)
    assert codec.join_parts([part, b"a", b"b", part, part], [0, 3, 4]) == [part, b"ab", part, part]
    assert codec.join_parts([], []) == [b""]


def test_ignorable_fields_are_dropped_and_others_refused() -> None:
    encode = codec.encoder(FetchRequest, 4)
    assert encode(FetchRequest(rack_id="r1")) == encode(FetchRequest())
    with pytest.raises(ProtocolError, match="this version cannot carry") as caught:
        codec.encoder(MetadataRequest, 3)(MetadataRequest(allow_auto_topic_creation=False))
    assert caught.value.field == "allow_auto_topic_creation"


def test_null_where_the_version_has_none() -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.encoder(MetadataRequest, 0)(MetadataRequest(topics=None))
    assert caught.value.field == "topics"
    with pytest.raises(ProtocolError) as caught:
        codec.encoder(MetadataRequest, 9)(MetadataRequest([MetadataRequestTopic(name=None)]))
    assert caught.value.field == "topics.name"
    assert codec.encoder(MetadataRequest, 9)(MetadataRequest(topics=None))[:1] == b"\x00"


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (FetchRequest(min_bytes=1 << 31), 4, "min_bytes"),
        (FetchRequest(isolation_level=200), 4, "isolation_level"),
        (FetchRequest(max_wait_ms="soon"), 4, "max_wait_ms"),  # type: ignore[arg-type]
        (FetchRequest(rack_id="\ud800"), 11, "rack_id"),
        (FetchRequest(rack_id="x" * 32768), 11, "rack_id"),
        (FetchRequest(rack_id="x" * 32768), 12, "rack_id"),
        (FetchRequest(rack_id=b"x"), 12, "rack_id"),  # type: ignore[arg-type]
        (FetchRequest(topics=7), 12, "topics"),  # type: ignore[arg-type]
        (MetadataRequest([MetadataRequestTopic(b"short")]), 12, "topics.topic_id"),
        (FetchRequest(unknown_tagged_fields={1: b""}), 4, "unknown_tagged_fields"),
        (FetchRequest(unknown_tagged_fields={-1: b""}), 12, "_tagged_fields"),
        (FetchRequest(cluster_id="c", unknown_tagged_fields={0: b""}), 12, "_tagged_fields"),
        (FetchRequest(cluster_id=3), 12, "cluster_id"),  # type: ignore[arg-type]
    ],
)
def test_values_that_cannot_be_encoded_are_named(
    message: Message, version: int, field: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.encoder(type(message), version)(message)
    assert caught.value.api == message.NAME
    assert caught.value.version == version
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("version", "data", "field", "reason"),
    [
        (0, "", "acks", "ends before"),
        (0, "ffff 0000", "timeout_ms", "ends before"),
        (0, "ffff 00000001 ffffffff", "topic_data", "is null"),
        (0, "ffff 00000001 fffffffe", "topic_data", "negative count -2"),
        (0, "ffff 00000001 7fffffff", "topic_data", "do not fit the 0 bytes"),
        (0, "ffff 00000001 00000001 ffff", "topic_data", "do not fit"),
        (0, "ffff 00000001 00000001 ffff 00000000", "topic_data.name", "is null"),
        (0, "ffff 00000001 00000001 8000 00000000", "topic_data.name", "negative length -32768"),
        (0, "ffff 00000001 00000001 0009 00000000", "topic_data.name", "has 9 bytes, but only 4"),
        (0, "ffff 00000001 00000001 0001 ff 00000000", "topic_data.name", "not UTF-8"),
        (
            0,
            "ffff 00000001 00000001 0000 00000001 00000000 00000009 00",
            "topic_data.partition_data.records",
            "has 9 bytes, but only 1",
        ),
        (9, "00 ffff 00000001 ffffffff7f", "topic_data", "longer than 32 bits"),
        (9, "00 ffff 00000001 02 ffffff0f 00 00 00", "topic_data.name", "longer than 32767"),
        (9, "00 ffff 00000001 02 00 01 00", "topic_data.name", "is null"),
        (9, "00 ffff 00000001 01 05", "_tagged_fields", "5 tagged fields do not fit"),
        (9, "00 ffff 00000001 01 01 09 05 00", "_tagged_fields", "has 5 bytes, but only 1"),
        (9, "00 ffff 00000001 01", "_tagged_fields", "ends before"),
    ],
)
def test_malformed_bytes_are_named(version: int, data: str, field: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        codec.decoder(ProduceRequest, version)(bytes.fromhex(data.replace(" ", "")), 0)
    assert caught.value.api == "ProduceRequest"
    assert caught.value.version == version
    assert caught.value.field == field


def test_a_known_tagged_field_must_have_its_size() -> None:
    message = FetchRequest(cluster_id="abc")
    data = codec.encoder(FetchRequest, 12)(message)
    assert data.endswith(bytes.fromhex("01 00 04 04 616263".replace(" ", "")))
    wrong = data[:-5] + bytes.fromhex("05 04 616263 00".replace(" ", ""))
    with pytest.raises(ProtocolError, match="of 5 bytes, but its value takes 4") as caught:
        codec.decoder(FetchRequest, 12)(wrong, 0)
    assert caught.value.field == "cluster_id"


def test_tagged_structs_of_defaults_are_not_sent() -> None:
    encode = codec.encoder(FetchResponse, 16)
    message = fetch_response(b"")
    message.responses[0].topic = ""
    plain = encode(message)
    message.responses[0].partitions[0].current_leader = LeaderIdAndEpoch()
    assert encode(message) == plain
    message.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(1, 7)
    message.node_endpoints = [NodeEndpoint(1, "host", 9092)]
    decoded, _ = codec.decoder(FetchResponse, 16)(encode(message), 0)
    assert decoded == message


def test_a_tagged_struct_may_be_null_where_its_default_is_not() -> None:
    """The bytes are those of a Kafka 3.9.1: before a struct with a tag null is 0, not -1."""
    encode = codec.encoder(ConsumerGroupMemberMetadataValue, 0)
    decode = codec.decoder(ConsumerGroupMemberMetadataValue, 0)
    message = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    assert encode(message) == bytes.fromhex("01010101010 1ffffffff 01 01 00 01 00".replace(" ", ""))
    assert decode(encode(message), 0)[0].classic_member_metadata is None
    message.classic_member_metadata = ClassicMemberMetadata()
    assert encode(message).endswith(b"\x01\x00")
    assert decode(encode(message), 0)[0].classic_member_metadata == ClassicMemberMetadata()


def test_stored_messages_begin_with_their_version() -> None:
    key = OffsetCommitKey("group", "orders", 3)
    data = codec.encode_with_version(key, 1)
    assert data == b"\x00\x01\x00\x05group\x00\x06orders\x00\x00\x00\x03"
    assert codec.read_stored_version(data) == 1
    assert codec.decode_with_version(OffsetCommitKey, data) == key


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x09", b"\x00\x01\x00"])
def test_stored_messages_that_are_none(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode_with_version(OffsetCommitValue, data)


def test_stored_messages_end_with_their_end() -> None:
    data = codec.encode_with_version(OffsetCommitKey("group", "orders", 3), 1)
    with pytest.raises(ProtocolError, match="1 bytes follow the end"):
        codec.decode_with_version(OffsetCommitKey, data + b"\x00")


def test_sources_can_be_read() -> None:
    assert "def decode(buffer, position):" in codec.decoder_source(FetchRequest, 12)
    assert "def encode(message, out, cuts):" in codec.encoder_source(FetchRequest, 12)
