"""Requests of the console: to the handlers of this broker, and past the same checks to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from ottla.broker.cluster.inter_broker_client import InterBrokerClient
from ottla.broker.cluster.metadata_cache import BrokerMetadata, MetadataCache, MetadataSnapshot
from ottla.broker.observability.console import cluster_client
from ottla.broker.observability.console.access import Viewer
from ottla.broker.observability.console.cluster_client import ClusterClient, NoResponse
from ottla.broker.requests.request_context import (
    ANONYMOUS,
    DEFERRED,
    Handler,
    HandlerEntry,
    RequestContext,
    Route,
)
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.access_control import allow_all
from ottla.protocol.client.errors import BrokerConnectionError, RequestTimedOutError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.registry import ApiKey

OWN = 1


class Remote:
    """Other brokers, some of which fail."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.errors: dict[int, Exception] = {}
        self.at_once = self.most_at_once = 0

    async def request_in_version(
        self, broker_id: int, key: int, newest: int, build: Callable[[int], Message]
    ) -> Message:
        self.sent.append(broker_id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if broker_id in self.errors:
            raise self.errors[broker_id]
        build(newest)
        return ListGroupsResponse(error_code=broker_id)


class Scene:
    def __init__(self, own: Handler, protect: Callable[[Any], Any] | None = None) -> None:
        self.remote = Remote()
        metadata = MetadataCache()
        brokers = {each: BrokerMetadata(each, {}, None) for each in range(1, 60)}
        metadata.snapshot = MetadataSnapshot(brokers, {}, {}, (1, 1))
        entry = HandlerEntry(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, own)
        self.client = ClusterClient(
            OWN,
            metadata,
            {ApiKey.LIST_GROUPS: Route(entry)},
            cast("InterBrokerClient", self.remote),
            protect or (lambda table: table),
            SecurityLog(None),
        )
        self.viewer = Viewer(allow_all, ANONYMOUS, "127.0.0.1")

    async def ask(self, broker_id: int) -> int:
        response = await self.client.ask(
            self.viewer, broker_id, ListGroupsRequest(), ListGroupsResponse
        )
        return response.error_code


def immediate(context: RequestContext, request: Any) -> Message:
    assert str(context.principal) == "User:ANONYMOUS"
    assert (context.client_host, context.listener_name) == ("127.0.0.1", "HTTP")
    return ListGroupsResponse(error_code=7)


async def in_coroutine(context: RequestContext, request: Any) -> Message:
    await asyncio.sleep(0)
    return ListGroupsResponse(error_code=7)


def deferred(context: RequestContext, request: Any) -> Any:
    asyncio.get_running_loop().call_soon(context.respond, ListGroupsResponse(error_code=7))
    return DEFERRED


async def in_slices(context: RequestContext, request: Any) -> Any:
    await context.respond_in_turns(ListGroupsResponse(error_code=7))
    return DEFERRED


@pytest.mark.parametrize("handler", [immediate, in_coroutine, deferred, in_slices])
async def test_a_request_to_this_broker_goes_to_its_handler(handler: Handler) -> None:
    scene = Scene(handler)
    assert await scene.ask(OWN) == 7
    assert scene.remote.sent == []


async def test_an_error_of_a_handler_is_raised() -> None:
    async def failing(context: RequestContext, request: Any) -> Message:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)

    def closing(context: RequestContext, request: Any) -> Any:
        context.close("it was not allowed")
        return DEFERRED

    for handler, code in (
        (failing, ErrorCode.NOT_CONTROLLER),
        (closing, ErrorCode.NETWORK_EXCEPTION),
    ):
        with pytest.raises(KafkaError) as raised:
            await Scene(handler).ask(OWN)
        assert raised.value.code == code


async def test_a_handler_is_not_cancelled_when_the_page_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_client, "DEADLINE_MS", 1)
    may_end = asyncio.Event()
    ended = asyncio.Event()

    async def slow(context: RequestContext, request: Any) -> Message:
        await may_end.wait()
        ended.set()
        return ListGroupsResponse()

    with pytest.raises(NoResponse, match="Broker 1 did not respond: no response in 1 ms"):
        await Scene(slow).ask(OWN)
    may_end.set()
    await ended.wait()


async def test_nothing_is_sent_that_the_viewer_may_not_send() -> None:
    def protect(table: Sequence[HandlerEntry]) -> list[HandlerEntry]:
        def refuse(context: RequestContext, request: Any) -> Message:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        return [entry._replace(handler=refuse) for entry in table]

    scene = Scene(immediate, protect)
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        await scene.ask(2)
    assert scene.remote.sent == []


async def test_a_broker_that_let_a_request_time_out_is_left_alone_for_a_while() -> None:
    scene = Scene(immediate)
    scene.remote.errors = {
        2: RequestTimedOutError("no response in time"),
        3: BrokerConnectionError("connection refused"),
    }
    for _ in range(3):
        for broker_id in (2, 3):
            with pytest.raises(NoResponse, match=f"Broker {broker_id} did not respond: "):
                await scene.ask(broker_id)
    assert scene.remote.sent == [2, 3, 3, 3]


async def test_many_brokers_some_at_a_time_and_the_silent_ones_are_named() -> None:
    scene = Scene(immediate)
    brokers = range(2, 60)
    scene.remote.errors = {each: BrokerConnectionError("refused.") for each in range(2, 30)}
    gathered = await scene.client.ask_each(
        scene.viewer, dict.fromkeys(brokers, ListGroupsRequest()), ListGroupsResponse
    )
    assert sorted(gathered.responses) == list(range(30, 60))
    assert scene.remote.most_at_once == cluster_client.MAX_AT_ONCE
    assert gathered.problems[0] == "Broker 2 did not respond: refused."
    assert len(gathered.problems) == cluster_client.MAX_PROBLEMS + 1
    assert gathered.problems[-1] == "8 more brokers did not respond."
