"""Requests to other brokers, while the controller reports that brokers have ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from ottla.broker.cluster.inter_broker_client import InterBrokerClient
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.client.errors import BrokerConnectionError
from ottla.protocol.message import Message
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from ottla.protocol.registry import ApiKey
from tests.doubles.published_metadata import publish
from tests.doubles.scripted_broker import SILENCE, ScriptedBroker, ScriptedServer

# No test waits so long: what does not end before it hangs.
TIMEOUT_MS = 600_000


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    broker = ScriptedBroker()
    with ScriptedServer(broker) as running:
        yield running


def live(metadata: MetadataCache, brokers: dict[int, tuple[str, int]]) -> None:
    """The metadata of a controller that has these live brokers."""
    publish(
        metadata,
        UpdateMetadataRequest(
            controller_id=1,
            live_brokers=[
                UpdateMetadataBroker(
                    id=broker_id, endpoints=[UpdateMetadataEndpoint(port, host, "PLAINTEXT")]
                )
                for broker_id, (host, port) in brokers.items()
            ],
        ),
    )


def client_of(metadata: MetadataCache) -> InterBrokerClient:
    return InterBrokerClient(metadata, "PLAINTEXT", "broker-1", TIMEOUT_MS)


async def close(client: InterBrokerClient) -> None:
    client.close()
    await asyncio.sleep(0)  # the transports end in the next turn of the loop


def address(server: ScriptedServer) -> tuple[str, int]:
    host, _, port = server.bootstrap.rpartition(":")
    return host, int(port)


async def test_a_request_to_a_broker_that_is_not_live_any_more_fails_at_once(
    server: ScriptedServer,
) -> None:
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def be_silent(header: object, request: Message) -> str:
        loop.call_soon_threadsafe(arrived.set)
        return SILENCE

    server.broker.responses[ApiKey.LIST_GROUPS] = be_silent
    metadata = MetadataCache()
    live(metadata, {2: address(server), 3: ("127.0.0.1", 1)})
    client = client_of(metadata)
    request = spawn(client.request(2, ListGroupsRequest()), name="request")
    await arrived.wait()
    live(metadata, {3: ("127.0.0.1", 1)})
    client.metadata_changed()
    with pytest.raises(BrokerConnectionError):
        await request
    await close(client)


async def test_a_connection_that_is_being_opened_to_such_a_broker_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        metadata = MetadataCache()
        live(metadata, {2: listener.getsockname()})
        client = client_of(metadata)
        request = spawn(client.request(2, ListGroupsRequest()), name="request")
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        with accepted:  # it never responds to ApiVersions, as over a cut network
            live(metadata, {})
            client.metadata_changed()
            with pytest.raises(ConnectionError, match="is not live"):
                await request
    await close(client)


async def test_requests_to_live_brokers_are_not_disturbed(server: ScriptedServer) -> None:
    asked: list[Message] = []

    def respond(header: object, request: Message) -> Message:
        asked.append(request)
        return ListGroupsResponse()

    server.broker.responses[ApiKey.LIST_GROUPS] = respond
    metadata = MetadataCache()
    live(metadata, {2: address(server), 3: ("127.0.0.1", 1)})
    client = client_of(metadata)
    await client.request(2, ListGroupsRequest())
    live(metadata, {2: address(server)})
    client.metadata_changed()
    await client.request(2, ListGroupsRequest())
    assert len(asked) == 2
    assert server.connections == 1
    await close(client)
