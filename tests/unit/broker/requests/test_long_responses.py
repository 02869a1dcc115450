"""Responses with very many rows."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, cast

from ottla.broker.requests.bulk_requests import PartContext
from ottla.broker.requests.long_responses import respond_in_slices
from ottla.broker.requests.request_context import DEFERRED, HandlerEntry, RequestContext, Route
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.headers import RequestHeader
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tests.doubles.pace import steps_per_turn

ROWS = 1_000


class Peer:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_response(self, context: RequestContext, parts: list[Any]) -> None:
        self.sent.append(parts)


def context() -> RequestContext:
    route = Route(HandlerEntry(16, "ListGroups", 0, 5, lambda *_: None))
    header = RequestHeader(16, 5, 1, "client")
    return RequestContext(header, ListGroupsRequest(), cast("Any", Peer()), route)


def steps() -> Generator[None, None, ListGroupsResponse]:
    response = ListGroupsResponse()
    for number in range(ROWS):
        response.groups.append(ListedGroup(f"group-{number}", "consumer", "Stable", "classic"))
        yield
    return response


async def test_others_run_in_between() -> None:
    made = context()
    turns = 0
    with steps_per_turn(20):
        work = spawn(respond_in_slices(made, steps()), name="response")
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
    assert work.result() is DEFERRED
    assert turns > 2 * ROWS // 20
    (parts,) = cast("Peer", made.connection).sent
    assert sum(map(len, parts)) > 20 * ROWS


async def test_a_part_of_a_request_keeps_its_response() -> None:
    whole = context()
    part = PartContext(whole, ListGroupsRequest())
    assert await respond_in_slices(part, steps()) is DEFERRED
    response = await part.response()
    assert isinstance(response, ListGroupsResponse)
    assert len(response.groups) == ROWS
    assert not cast("Peer", whole.connection).sent
