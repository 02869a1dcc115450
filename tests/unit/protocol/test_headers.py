from typing import Any

import pytest

from ottla.protocol import headers
from ottla.protocol.codec import PIECES_PER_STEP
from ottla.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from ottla.protocol.generate import load_definitions
from ottla.protocol.headers import (
    RequestHeader,
    decode_request,
    decode_request_body,
    decode_request_header,
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
    encode_response,
    encode_response_header,
    encode_response_in_steps,
)
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.registry import API, ApiKey
from ottla.protocol.steps import run_at_once
from tests.doubles.reference_codec import ReferenceCodec

REQUEST_SCHEMA, RESPONSE_SCHEMA = load_definitions()["headers"]

EVERY_VERSION = [
    (key, version) for key, api in API.items() for version in range(api.max_version + 1)
]


def request_header_values(header: RequestHeader) -> dict[str, object]:
    return {
        "request_api_key": header.api_key,
        "request_api_version": header.api_version,
        "correlation_id": header.correlation_id,
        "client_id": header.client_id,
        "unknown_tagged_fields": header.unknown_tagged_fields,
    }


@pytest.mark.parametrize("client_id", [None, "", "consumer-1", "\u017elu\u0165"])
def test_request_headers_agree_with_the_reference(client_id: str | None) -> None:
    for key, version in EVERY_VERSION:
        header_version = API[key].request_header_version(version)
        reference = ReferenceCodec(REQUEST_SCHEMA, header_version)
        tags = {7: b"seven"} if header_version == 2 else None
        header = RequestHeader(key, version, -5, client_id, tags)
        wanted = reference.encode(request_header_values(header))
        got = encode_request_header(key, version, -5, client_id, tags)
        assert got == wanted, (key, version)
        if header_version == 0:
            header.client_id = None
        for buffer in (got, bytearray(got), memoryview(got)):
            assert decode_request_header(buffer) == (header, len(got))


def test_response_headers_agree_with_the_reference() -> None:
    for key, version in EVERY_VERSION:
        reference = ReferenceCodec(RESPONSE_SCHEMA, API[key].response_header_version(version))
        wanted = reference.encode({"correlation_id": 77, "unknown_tagged_fields": None})
        assert encode_response_header(key, version, 77) == wanted
        assert decode_response_header(wanted, key, version) == (77, len(wanted))


def test_tagged_fields_of_response_headers_are_skipped() -> None:
    head = b"\x00\x00\x00\x07\x01\x05\x02ab"
    assert decode_response_header(head + b"rest", ApiKey.FETCH, 12) == (7, 9)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "0 bytes are no request header"),
        (b"\x00\x03\x00\x00\x00\x00\x00", "7 bytes are no request header"),
        (b"\x00\x03\x00\x00\x00\x00\x00\x01", "ends too early"),
        (b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x05abc", "has 5 bytes, but only 3"),
        (b"\x00\x03\x00\x00\x00\x00\x00\x01\xff\xfe", "negative length -2"),
        (b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x01\xff", "not UTF-8"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff", "ends too early"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff\x09", "9 tagged fields do not fit"),
    ],
)
def test_request_headers_that_are_none(frame: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        decode_request_header(frame)
    assert caught.value.api == "request header"


def test_unknown_api_keys() -> None:
    with pytest.raises(UnsupportedVersionError, match="no API has the key 999"):
        decode_request_header(b"\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff")


def test_unknown_versions_still_have_a_header() -> None:
    head = encode_request_header(ApiKey.API_VERSIONS, 99, 5, "new client")
    header, position = decode_request_header(head + b"whatever comes")
    assert (header.api_version, header.correlation_id, header.client_id) == (99, 5, "new client")
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request_body(header, head, position)
    assert (caught.value.api, caught.value.version) == ("ApiVersionsRequest", 99)


@pytest.mark.parametrize("version", [0, 4])
def test_requests_come_back(version: int) -> None:
    request = HeartbeatRequest("group", 4, "member")
    data = encode_request(9, "client", request, version)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    header, decoded = decode_request(memoryview(data)[4:])
    assert header == RequestHeader(ApiKey.HEARTBEAT, version, 9, "client")
    assert decoded == request


def test_controlled_shutdown_0_has_no_client_id() -> None:
    data = encode_request(9, "lost", ControlledShutdownRequest(broker_id=3), 0)
    assert data.hex() == "0000000c" + "00070000" + "00000009" + "00000003"
    header, request = decode_request(data[4:])
    assert header.client_id is None
    assert request == ControlledShutdownRequest(broker_id=3)


def test_bytes_after_a_request_are_skipped() -> None:
    """As librdkafka requests the metadata of all topics: an array of null, and three bytes more."""
    frame = bytes.fromhex("0003000c00000004000772646b61666b610000000000010000")
    _, request = decode_request(frame)
    assert request == MetadataRequest(topics=None, allow_auto_topic_creation=False)


@pytest.mark.parametrize("version", [3, 4])  # with request header 1 and 2
def test_the_second_request_of_a_version_is_read_as_the_first_one(version: int) -> None:
    def frame(client_id: str | None) -> bytearray:
        message = HeartbeatRequest("group", 5, "member")
        return bytearray(encode_request(7, client_id, message, version)[4:])

    plain = frame("tester")
    for _ in range(2):
        header, message = decode_request(plain)
        assert header == RequestHeader(ApiKey.HEARTBEAT, version, 7, "tester")
        assert message == HeartbeatRequest("group", 5, "member")
    for client_id in (None, "", "Prüfer"):
        header, again = decode_request(frame(client_id))
        assert header == RequestHeader(ApiKey.HEARTBEAT, version, 7, client_id)
        assert again == message
    wrong = frame("tester")
    wrong[10:16] = b"\xff" * 6
    with pytest.raises(ProtocolError, match="the client id is not UTF-8"):
        decode_request(wrong)
    for size in range(len(plain)):
        with pytest.raises(ProtocolError):
            decode_request(plain[:size])
    for length in (b"\x7f\xff", b"\xff\xfe"):
        wrong = frame("tester")
        wrong[8:10] = length
        with pytest.raises(ProtocolError):
            decode_request(wrong)


def test_tagged_fields_of_a_request_header_are_read_every_time() -> None:
    frame = bytearray(encode_request(7, "tester", HeartbeatRequest("group", 5, "member"), 4)[4:])
    frame[16:17] = b"\x01\x09\x02ab"
    for _ in range(2):
        header, message = decode_request(frame)
        assert header.unknown_tagged_fields == {9: b"ab"}
        assert message == HeartbeatRequest("group", 5, "member")


def test_bytes_after_a_response_are_refused() -> None:
    response = encode_response(ApiKey.HEARTBEAT, 0, 9, HeartbeatResponse())[0]
    with pytest.raises(ProtocolError, match="2 bytes follow the end"):
        decode_response(bytes(response)[4:] + b"\x00\x00", ApiKey.HEARTBEAT, 0)  # type: ignore[arg-type]


class FilePart:
    def __len__(self) -> int:
        return 1_000_000


@pytest.mark.parametrize("version", [4, 12])
def test_responses_count_the_parts_that_are_not_bytes(version: int) -> None:
    response = FetchResponse(
        responses=[FetchableTopicResponse("t", partitions=[PartitionData(records=FilePart())])]
    )
    parts = encode_response(ApiKey.FETCH, version, 9, response)
    first = parts[0]
    assert isinstance(first, bytes)
    assert isinstance(parts[1], FilePart)
    assert int.from_bytes(first[:4], "big") == sum(map(len, parts)) - 4
    assert int.from_bytes(first[4:8], "big") == 9


def test_large_views_of_memory_are_not_copied() -> None:
    kept = memoryview(bytes(range(256)) * 1024)
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    PartitionData(0, records=kept[:100_000]),
                    PartitionData(1, records=kept[:9]),
                ],
            )
        ]
    )
    parts = encode_response(ApiKey.FETCH, 11, 9, response)
    assert [part.obj is kept.obj for part in parts if isinstance(part, memoryview)] == [True]
    data = b"".join(parts)  # type: ignore[arg-type]
    assert int.from_bytes(data[:4]) == len(data) - 4
    decoded = decode_response(data[4:], ApiKey.FETCH, 11)[1]
    assert decoded.responses[0].partitions[0].records == kept[:100_000]
    assert decoded.responses[0].partitions[1].records == kept[:9]


def in_steps(response: FetchResponse | DescribeConfigsResponse, version: int) -> tuple[Any, int]:
    """The parts, and the most pieces that were joined in one step."""
    most = 0
    join = headers.join_parts

    def counted(pieces: list[Any], cuts: list[int]) -> list[Any]:
        nonlocal most
        most = max(most, len(pieces))
        return join(pieces, cuts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headers, "join_parts", counted)
        steps = encode_response_in_steps(response.API_KEY, version, 9, response)
        return run_at_once(steps), most


@pytest.mark.parametrize("count", [0, 1, 3000])
@pytest.mark.parametrize("version", [1, 4])
def test_a_long_response_is_joined_in_steps(version: int, count: int) -> None:
    row = DescribeConfigsResourceResult("name", "value", config_source=1, synonyms=[])
    rows = [DescribeConfigsResult(0, None, 2, f"topic-{n}", [row] * 3) for n in range(count)]
    response = DescribeConfigsResponse(results=rows)
    parts, most = in_steps(response, version)
    assert [b"".join(parts)] == encode_response(response.API_KEY, version, 9, response)
    assert most < 2 * PIECES_PER_STEP
    assert (len(parts) > 3) is (count > 1)


def test_a_long_response_in_steps_has_its_large_views_and_file_parts() -> None:
    kept = memoryview(bytes(range(256)) * 1024)
    records = [kept, FilePart(), b"small", kept[:9], None] * 1000
    rows = [PartitionData(index, records=each) for index, each in enumerate(records)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=rows)])
    parts, _ = in_steps(response, 11)
    wanted = encode_response(ApiKey.FETCH, 11, 9, response)

    def without_files(each: list[Any]) -> bytes:
        return b"".join(part for part in each if not isinstance(part, FilePart))

    assert without_files(parts) == without_files(wanted)
    for kind in (FilePart, memoryview):
        assert sum(isinstance(part, kind) for part in parts) == 1000


@pytest.mark.parametrize("version", [0, 4])
def test_responses_come_back(version: int) -> None:
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    (data,) = encode_response(ApiKey.HEARTBEAT, version, 9, response)
    assert isinstance(data, bytes)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert decode_response(data[4:], ApiKey.HEARTBEAT, version) == (9, response)


def test_api_versions_response_in_version_0_is_understood() -> None:
    """A broker that lacks the version responds in version 0 with an error; see KIP-511."""
    response = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(18, 0, 2)])
    (data,) = encode_response(ApiKey.API_VERSIONS, 0, 9, response)
    assert isinstance(data, bytes)
    assert decode_response(data[4:], ApiKey.API_VERSIONS, 4) == (9, response)
    (data,) = encode_response(ApiKey.API_VERSIONS, 4, 9, ApiVersionsResponse())
    assert isinstance(data, bytes)
    assert decode_response(data[4:], ApiKey.API_VERSIONS, 4) == (9, ApiVersionsResponse())


@pytest.mark.parametrize("frame", ["", "000000", "00000001", "0000000105"])
def test_response_headers_that_are_none(frame: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_response(bytes.fromhex(frame), ApiKey.FETCH, 12)
    assert caught.value.api == "response header"


def test_client_ids_that_cannot_be_encoded() -> None:
    for client_id in ("x" * 40_000, "\ud800"):
        with pytest.raises(ProtocolError, match="request header"):
            encode_request(1, client_id, ApiVersionsRequest(), 0)


def test_requests_cannot_hold_file_parts() -> None:
    partition = PartitionProduceData(0, FilePart())  # type: ignore[arg-type]  # what is refused
    request = ProduceRequest(None, 1, 1, [TopicProduceData("t", [partition])])
    with pytest.raises(ProtocolError, match="records are a FilePart"):
        encode_request(1, None, request, 9)


def test_header_objects() -> None:
    header = RequestHeader(1, 2, 3, "me")
    assert repr(header) == (
        "RequestHeader(api_key=1, api_version=2, correlation_id=3, client_id='me')"
    )
    assert header != "something else"
    assert header != RequestHeader(1, 2, 3, "you")
