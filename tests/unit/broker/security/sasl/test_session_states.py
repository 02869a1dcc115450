"""States of a SASL session in which a client must not get in."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.runtime.timer import ManualTimer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.doubles.network import SIZE, metadata_request
from tests.unit.broker.security.sasl.test_session import (
    ANNA,
    SCRAM,
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
