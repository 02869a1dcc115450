"""Connections that wait for a place in the request queue get it in the order in which they came."""

import asyncio

import pytest

from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.network import METADATA, SIZE, entry, metadata_request, running_network

PLACES = 4
CLIENTS = 60
REQUESTS = 25


@pytest.mark.parametrize("is_in_pieces", [False, True])
async def test_no_connection_is_served_much_more_often_than_another(is_in_pieces: bool) -> None:
    served: dict[int, int] = {}
    ahead = 0

    def serve(context: RequestContext, _: Message) -> MetadataResponse:
        nonlocal ahead
        port = context.client_port
        served[port] = served.get(port, 0) + 1
        if len(served) == CLIENTS:
            ahead = max(ahead, served[port] - min(served.values()))
        return MetadataResponse()

    async def ask(frame: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
        for _ in range(REQUESTS):
            writer.write(frame[:5] if is_in_pieces else frame)
            if is_in_pieces:
                await asyncio.sleep(0)
                writer.write(frame[5:])
            size = SIZE.unpack(await reader.readexactly(4))[0]
            await reader.readexactly(size)
        await barrier.wait()  # all stay connected until the last one is done
        writer.close()

    frame = encode_request(1, "tester", metadata_request(), 2)
    barrier = asyncio.Barrier(CLIENTS)
    async with (
        running_network(entry(METADATA, "Metadata", serve), max_requests=PLACES) as network,
        asyncio.timeout(60),
    ):
        await asyncio.gather(*(ask(frame) for _ in range(CLIENTS)))
    assert set(served.values()) == {REQUESTS}
    assert ahead <= 3
