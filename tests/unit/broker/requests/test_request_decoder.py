import logging
from struct import pack

import pytest

from ottla.broker.requests.request_channel import Principal, RequestContext
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.network import (
    API_VERSIONS,
    METADATA,
    SIZE,
    api_versions_response,
    entry,
    metadata_request,
    running_network,
)


def frame(content: bytes) -> bytes:
    return SIZE.pack(len(content)) + content


def only_line(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [r for r in caplog.records if r.name == "ottla.net"]
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    return record.getMessage()


async def test_a_newer_api_versions_request_gets_version_0_with_what_we_have() -> None:
    async with running_network() as network:
        client = await network.connect()
        # Whatever follows the header is of a version that we cannot know.
        client.writer.write(frame(pack(">hhih", API_VERSIONS, 77, 12, 3) + b"new" + b"\xfe" * 9))
        correlation_id, response = await client.receive(API_VERSIONS, 0)
        assert correlation_id == 12
        versions = [ApiVersion(API_VERSIONS, 0, 4)]
        assert response == ApiVersionsResponse(error_code=35, api_keys=versions)
        # The connection lives on.
        assert await client.ask(metadata_request()) == MetadataResponse()


async def test_pipelined_newer_requests_get_responses_one_by_one() -> None:
    async with running_network() as network:
        client = await network.connect()
        count = 5_000  # more than Python's limit of recursion
        client.writer.write(b"".join(frame(pack(">hhi", 18, 99, n)) for n in range(count)))
        for number in range(count):
            assert (await client.receive(API_VERSIONS, 0))[0] == number


@pytest.mark.parametrize(
    ("key", "version", "words"),
    [
        (999, 3, "API key 999 version 3, which is not supported"),
        (76, 1, "enabled by `share` in group.coordinator.rebalance.protocols"),
        (METADATA, 9, "Metadata (API key 3) version 9; supported versions are 0 to 4"),
        (METADATA, -1, "Metadata (API key 3) version -1; supported versions are 0 to 4"),
    ],
)
async def test_what_is_not_offered_closes_the_connection_with_a_log_line(
    key: int, version: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network() as network:
        client = await network.connect()
        await client.ask(ApiVersionsRequest("a-client", "9.9"), 3)
        client.writer.write(frame(pack(">hhih", key, version, 1, 5) + b"my-id" + b"\x00" * 8))
        assert await client.is_closed()
        line = only_line(caplog)
        assert words in line
        assert "a-client 9.9" in line
        if key == METADATA:
            assert "'my-id'" in line
        assert network.statistics.protocol_errors == 1
        assert network.channel.in_progress_bytes == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x03",
        pack(">hhi", METADATA, 1, 1),  # no client id
        pack(">hhih", METADATA, 1, 1, 30) + b"short",
        pack(">hhih", METADATA, 1, 1, -7),
        pack(">hhih", METADATA, 1, 1, -1) + pack(">i", 2_000_000_000),
    ],
)
async def test_bytes_that_are_no_request_close_the_connection(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_network() as network:
        client = await network.connect()
        client.writer.write(frame(content))
        assert await client.is_closed()
        assert "closing the connection" in only_line(caplog)
        assert network.channel.in_progress_bytes == 0
        other = await network.connect()
        assert await other.ask(metadata_request()) == MetadataResponse()


async def test_the_log_says_it_once_a_minute_for_each_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network() as network:
        for _ in range(20):
            client = await network.connect()
            client.writer.write(frame(b"\x03\xe7" * 10))
            assert await client.is_closed()
        only_line(caplog)
        assert network.statistics.protocol_errors == 20


async def test_before_authentication_only_some_requests_are_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Principal] = []

    def authenticate(context: RequestContext, request: ApiVersionsRequest) -> Message:
        if request.client_software_name == "alice":
            context.connection.authenticate(Principal("User", "alice"))
        return api_versions_response(context, request)

    def handle(context: RequestContext, _: Message) -> Message:
        seen.append(context.principal)
        return MetadataResponse()

    entries = (
        entry(API_VERSIONS, "ApiVersions", authenticate, before_authentication=True),
        entry(METADATA, "Metadata", handle),
    )
    async with running_network(*entries, security_protocol="SASL_PLAINTEXT") as network:
        client = await network.connect()
        await client.ask(ApiVersionsRequest("alice", "1"), 3)
        await client.ask(metadata_request("x" * 30_000))
        assert [str(principal) for principal in seen] == ["User:alice"]

        other = await network.connect()
        await other.ask(ApiVersionsRequest("mallory", "1"), 3)
        other.send(metadata_request())
        assert await other.is_closed()
        assert "before authentication" in only_line(caplog)
        assert len(seen) == 1


async def test_frames_are_short_before_authentication(caplog: pytest.LogCaptureFixture) -> None:
    def authenticate(context: RequestContext, request: ApiVersionsRequest) -> Message:
        context.connection.authenticate(Principal("User", "alice"))
        return api_versions_response(context, request)

    entries = (entry(API_VERSIONS, "ApiVersions", authenticate, before_authentication=True),)
    async with running_network(*entries, security_protocol="SASL_PLAINTEXT") as network:
        other = await network.connect()
        other.writer.write(SIZE.pack(524_289))
        assert await other.is_closed()
        assert "allowed are 0 to 524288 before authentication" in only_line(caplog)

        client = await network.connect()
        await client.ask(ApiVersionsRequest("alice", "1"), 3)
        names = [f"{n}" + "x" * 30_000 for n in range(20)]
        big = encode_request(9, "t", metadata_request(*names), 0)
        assert len(big) > 524_288
        client.writer.write(big)
        assert (await client.receive())[0] == 9
