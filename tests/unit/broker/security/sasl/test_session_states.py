"""States of a SASL session in which a client must not get in."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.doubles.manual_timer import ManualTimer
from tests.doubles.network import SIZE, metadata_request
from tests.unit.broker.security.sasl.test_session import (
    ANNA,
    SCRAM,
    authenticate,
    handshake,
    log_in,
    scene,
    who,
)


async def test_the_principal_must_stay_the_same_with_bare_tokens() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 60_000
        client = await network.connect()
        await log_in(client)
        assert (await handshake(client, "PLAIN", 0)).error_code == ErrorCode.NONE
        token = b"\0bob\0pass"
        client.writer.write(SIZE.pack(len(token)) + token)
        assert await client.is_closed()
        assert made.principals == []


async def test_the_same_principal_renews_with_bare_tokens() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 60_000
        client = await network.connect()
        await log_in(client)
        await handshake(client, "PLAIN", 0)
        client.writer.write(SIZE.pack(len(ANNA)) + ANNA)
        assert await client.receive_frame() == b""
        assert await who(client) == "User:anna"


async def test_a_renewal_by_another_mechanism_cannot_start_over() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 60_000
        client = await network.connect()
        await log_in(client)
        assert (await handshake(client, SCRAM)).error_code == ErrorCode.NONE
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert await client.is_closed()


async def test_api_versions_that_are_not_supported_may_be_requested_again() -> None:
    """As clients do that begin with a version the broker does not have; once it is supported, no
    second time."""
    async with scene() as (_, network):
        client = await network.connect()
        first = await client.ask(ApiVersionsRequest(), 0)
        assert getattr(first, "error_code", None) == ErrorCode.NONE
        client.send(ApiVersionsRequest(), 0)
        assert await client.is_closed()


async def test_a_produce_request_without_acks_gets_no_response() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        await handshake(client)
        client.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9)
        assert await client.is_closed()


async def test_a_produce_request_with_acks_gets_one() -> None:
    async with scene() as (_, network):
        client = await network.connect()
        await handshake(client)
        topic = TopicProduceData("t", [PartitionProduceData(0, b"")])
        client.send(ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic]), 9)
        response: Any = (await client.receive(ProduceRequest.API_KEY, 9))[1]
        (row,) = response.responses[0].partition_responses
        assert row.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed()


async def test_api_versions_that_fail_may_be_requested_again() -> None:
    """Clients do so that begin with a version the broker does not have."""
    async with scene() as (made, network):
        made.versions_error = ErrorCode.INVALID_REQUEST
        client = await network.connect()
        first: Any = await client.ask(ApiVersionsRequest(), 0)
        assert first.error_code == ErrorCode.INVALID_REQUEST
        made.versions_error = ErrorCode.NONE
        again: Any = await client.ask(ApiVersionsRequest(), 0)
        assert again.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("request_", "version"), [(ApiVersionsRequest(), 0), (SaslHandshakeRequest("PLAIN"), 1)]
)
async def test_the_first_request_shows_that_it_is_a_kafka_client(
    request_: Message, version: int
) -> None:
    async with scene() as (_, network):
        client = await network.connect()
        await network.until(lambda: len(network.server.connections) == 1)
        (connection,) = network.server.connections
        assert not connection.identified
        await client.ask(request_, version)
        assert connection.identified


async def test_only_the_last_response_of_an_authentication_has_a_session_lifetime() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 60_000
        client = await network.connect()
        await handshake(client, SCRAM)
        response = await authenticate(client, b"n,,n=anna,r=abc")
        assert (response.error_code, response.session_lifetime_ms) == (ErrorCode.NONE, 0)


async def test_a_defect_in_an_exchange_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene() as (made, network):
        client = await network.connect()
        await handshake(client)
        (connection,) = network.server.connections
        connection.sasl._exchange = None  # type: ignore[union-attr]
        client.send(SaslAuthenticateRequest(auth_bytes=ANNA), 1)
        assert await client.is_closed()
        assert made.principals == []
    assert "Unexpected error in the authentication of " in caplog.text


async def test_a_token_login_has_the_name_of_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    async with scene() as (made, network):
        made.token_id = "xyz"
        client = await network.connect()
        await log_in(client)
        (connection,) = network.server.connections
        assert connection.sasl is not None
        assert connection.sasl.is_token
        made.token_id = ""
        other = await network.connect()
        await log_in(other)
        assert sum(each.sasl.is_token for each in network.server.connections if each.sasl) == 1
        await log_in(await network.connect(), b"\0anna\0wrong")
    lines = [vars(each) for each in caplog.records if each.name == "ottla.audit"]
    assert [(each["principal"], each["result"]) for each in lines] == [
        ("User:anna", "success"),
        ("User:anna", "success"),
        ("User:anna", "failure"),
    ]


async def test_a_session_of_one_millisecond() -> None:
    async with scene() as (made, network):
        real, manual = made.timer, ManualTimer()
        made.timer = manual  # type: ignore[assignment] # is closed below
        try:
            made.lifetime_ms = 1
            made.expires_at_ms = made.now_ms + 60_000
            client = await network.connect()
            assert (await log_in(client)).session_lifetime_ms == 1
            assert await who(client) == "User:anna"
            manual.advance(1)
            client.send(metadata_request())
            assert await client.is_closed()
        finally:
            made.timer = real


async def test_a_session_that_is_over_at_once_waits_for_no_timer() -> None:
    async with scene() as (made, network):
        real, manual = made.timer, ManualTimer()
        made.timer = manual  # type: ignore[assignment] # is closed below
        try:
            made.expires_at_ms = made.now_ms
            client = await network.connect()
            assert (await log_in(client)).session_lifetime_ms == 0
            client.send(metadata_request())
            assert await client.is_closed()
        finally:
            made.timer = real


async def test_a_session_without_an_end_is_not_renewed() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 60_000
        client = await network.connect()
        await log_in(client)
        made.lifetime_ms = 0
        assert (await log_in(client)).session_lifetime_ms == 0
        made.monotonic_seconds += 3600
        assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_a_session_is_renewed_once_a_second_at_most() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 60_000
        client = await network.connect()
        await log_in(client)
        await log_in(client)
        for seconds in (0.5, 0.4995):
            made.monotonic_seconds += seconds
            assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        made.monotonic_seconds = 101.0
        assert (await handshake(client)).error_code == ErrorCode.NONE


async def test_a_renewed_session_does_not_end_with_the_first_one() -> None:
    async with scene() as (made, network):
        real, manual = made.timer, ManualTimer()
        made.timer = manual  # type: ignore[assignment] # is closed below
        try:
            made.lifetime_ms = 1_000
            client = await network.connect()
            await log_in(client)
            made.lifetime_ms = 60_000
            await log_in(client)
            manual.advance(1_000)
            assert await who(client) == "User:anna"
            made.lifetime_ms = 0
            manual.advance(59_000)
            client.send(metadata_request())
            assert await client.is_closed(), "it did not renew"
        finally:
            made.timer = real


async def test_a_closed_session_leaves_no_timer() -> None:
    async with scene() as (made, network):
        real, manual = made.timer, ManualTimer()
        made.timer = manual  # type: ignore[assignment] # is closed below
        try:
            made.lifetime_ms = 1_000
            client = await network.connect()
            await log_in(client)
            await client.close()
            await network.until(lambda: not network.server.connections)
            assert manual.advance(10_000) == 0
        finally:
            made.timer = real


@pytest.mark.parametrize(
    ("request_", "version", "words"),
    [
        (
            DescribeClusterRequest(),
            0,
            "Unexpected Kafka request of type DESCRIBE_CLUSTER during SASL authentication.",
        ),
        (
            FindCoordinatorRequest(key="g"),
            1,
            "Request is not valid given the current SASL state.",
        ),
    ],
)
async def test_a_request_in_the_middle_of_an_authentication(
    request_: Message, version: int, words: str
) -> None:
    async with scene() as (_, network):
        client = await network.connect()
        await handshake(client)
        client.send(request_, version)
        response: Any = (await client.receive(request_.API_KEY, version))[1]
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert response.error_message == words
        assert await client.is_closed()
