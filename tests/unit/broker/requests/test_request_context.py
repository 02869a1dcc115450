from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.requests.request_context import (
    ANONYMOUS,
    HandlerEntry,
    Principal,
    RequestContext,
    Route,
    amend,
)
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.headers import RequestHeader
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.steps import Steps
from tests.doubles.pace import steps_per_turn


class Peer:
    """A connection that notes what happens to it."""

    listener_name = "EXTERNAL"
    principal = Principal("User", "alice")
    authenticated = True
    client_host, client_port = "10.0.0.1", 50_000
    local_address = ("10.0.0.2", 9092)
    client_software_name = client_software_version = ""
    closed = False

    def __init__(self) -> None:
        self.events: list[Any] = []

    def send_response(self, context: RequestContext, parts: list[Any]) -> None:
        self.events.append((context.throttle_time_ms, parts))

    def close(self, reason: str) -> None:
        self.closed = True
        self.events.append(reason)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def context(peer: Peer) -> RequestContext:
    route = Route(HandlerEntry(3, "Metadata", 0, 12, lambda *_: None))
    return RequestContext(RequestHeader(3, 1, 99, "app"), MetadataRequest(), peer, route)


def test_it_says_where_the_request_came_from(context: RequestContext, peer: Peer) -> None:
    assert context.listener_name == "EXTERNAL"
    assert str(context.principal) == "User:alice"
    assert (context.client_host, context.client_port) == ("10.0.0.1", 50_000)
    assert context.local_address == ("10.0.0.2", 9092)
    assert not context.client_gone
    peer.closed = True
    assert context.client_gone


def test_a_response_carries_the_correlation_id_and_its_size(
    context: RequestContext, peer: Peer
) -> None:
    context.respond(MetadataResponse())
    ((_, [response]),) = peer.events
    assert int.from_bytes(response[:4], "big") == len(response) - 4
    assert int.from_bytes(response[4:8], "big") == 99


def test_a_throttle_time_counts_even_where_the_response_has_no_field_for_it(
    context: RequestContext, peer: Peer
) -> None:
    context.respond(MetadataResponse(), throttle_time_ms=70)
    assert peer.events[0][0] == 70


def test_the_longest_throttle_time_counts(context: RequestContext, peer: Peer) -> None:
    context.route.throttle = lambda _: 20
    context.throttle_time_ms = 50
    context.respond(None, throttle_time_ms=30)
    assert peer.events == [(50, [])]


def test_closing_is_a_response_too(context: RequestContext, peer: Peer) -> None:
    context.close("acks=0 and an error")
    assert peer.events == ["acks=0 and an error", (0, [])]
    with pytest.raises(RuntimeError, match="Metadata request got two responses"):
        context.respond(None)


def test_every_client_without_authentication_is_anonymous() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


async def test_a_response_in_turns_is_the_same(context: RequestContext, peer: Peer) -> None:
    response = MetadataResponse(
        topics=[MetadataResponseTopic(0, f"topic-{number}") for number in range(3_000)]
    )
    whole = Peer()
    RequestContext(context.header, context.request, whole, context.route).respond(response)
    await context.respond_in_turns(response)
    ((_, expected),) = whole.events
    ((_, sent),) = peer.events
    assert b"".join(map(bytes, sent)) == b"".join(map(bytes, expected))
    with pytest.raises(RuntimeError, match="two responses"):
        await context.respond_in_turns(response)


async def test_a_response_in_turns_that_cannot_be_encoded(
    context: RequestContext, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    topics: Any = [MetadataResponseTopic(0, "topic"), MetadataResponseTopic(0, 5)]  # type: ignore[arg-type]
    await context.respond_in_turns(MetadataResponse(topics=topics))
    assert peer.events == [(0, []), "the response could not be encoded"]
    assert "cannot encode the response to Metadata version 1" in caplog.text


async def test_a_response_in_turns_may_be_amended_to_a_closed_connection(
    context: RequestContext, peer: Peer
) -> None:
    context.amend = lambda response: context.close("not allowed")
    await context.respond_in_turns(MetadataResponse())
    assert peer.events == ["not allowed", (0, [])]


ROWS = 40


def long_change(response: MetadataResponse) -> Steps[None]:
    for _ in range(ROWS):
        response.topics.append(MetadataResponseTopic())
        yield


def test_changes_are_applied_in_order(context: RequestContext) -> None:
    for number in range(3):
        amend(
            context,
            lambda response, number=number: response.topics.append(MetadataResponseTopic(number)),
        )
        amend(context, long_change)
    response = MetadataResponse()
    context.respond(response)
    codes = [topic.error_code for topic in response.topics]
    assert codes == [0, *[0] * ROWS, 1, *[0] * ROWS, 2, *[0] * ROWS]


async def test_others_run_while_a_long_response_is_changed_and_encoded(
    context: RequestContext, peer: Peer
) -> None:
    amend(context, long_change)
    response = MetadataResponse()
    with steps_per_turn(5):
        work = spawn(context.respond_in_turns(response), name="response")
        await asyncio.sleep(0)
        assert len(response.topics) == 5
        turns = 1
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns > 2 * ROWS // 5
    assert len(response.topics) == ROWS
    assert len(peer.events) == 1
