"""A network server with a few handlers in this process, and a client that speaks raw frames."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from struct import Struct
from typing import Any

from ottla.broker.net.listener import SocketSettings
from ottla.broker.net.server import NetworkServer
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits
from ottla.broker.requests.request_channel import HandlerEntry, RequestChannel, RequestContext
from ottla.broker.runtime.tasks import WorkerPool, running_tasks
from ottla.broker.runtime.timer import Timer
from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tests.doubles.api_routes import entry_of
from tests.doubles.eventually import eventually_async

SIZE = Struct(">i")
API_VERSIONS, METADATA = 18, 3
DEADLINE_SECONDS = 20.0


def api_versions_response(context: RequestContext, request: ApiVersionsRequest) -> Message:
    context.connection.client_software_name = request.client_software_name
    context.connection.client_software_version = request.client_software_version
    return ApiVersionsResponse(api_keys=[ApiVersion(API_VERSIONS, 0, 4)])


def metadata_response(_: RequestContext, request: MetadataRequest) -> Message:
    """Echoes the topics that were requested."""
    return MetadataResponse(
        topics=[MetadataResponseTopic(name=topic.name) for topic in request.topics or ()]
    )


def metadata_request(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])


def entry(api_key: int, name: str, handler: Callable[..., Any], **more: Any) -> HandlerEntry:
    """A line of the handler table with the versions 0 to 4, and what the route of the API says."""
    return entry_of(api_key, handler, **{"name": name, "min_version": 0, "max_version": 4, **more})


class Network:
    """What `running_network` yields."""

    def __init__(self, entries: list[HandlerEntry], options: dict[str, Any]) -> None:
        table = {
            API_VERSIONS: entry(
                API_VERSIONS, "ApiVersions", api_versions_response, before_authentication=True
            ),
            METADATA: entry(METADATA, "Metadata", metadata_response),
        }
        table.update({line.api_key: line for line in entries})
        self.errors: list[Exception] = []
        self.error_response: Message | None = None
        channel_options = {
            name: options.pop(name)
            for name in ("max_requests", "memory", "handler_tasks", "early_checks")
            if name in options
        }
        self.listener_options = {
            name: options.pop(name)
            for name in (
                *("security_protocol", "tls_context", "principal_of_certificate"),
                *("new_session", "first_frame_max_bytes"),
            )
            if name in options
        }
        self.listener_limits: ListenerLimits = options.pop("listener_limits", ListenerLimits())
        self.channel = RequestChannel(table.values(), self._error, **channel_options)
        self.timer = Timer()
        self.pool = WorkerPool(threads=2)
        options.setdefault("limits", ConnectionLimits())
        options.setdefault("sockets", SocketSettings(backlog=512))
        self.server = NetworkServer(self.channel, self.timer, self.pool, **options)
        self.statistics = self.server.statistics
        self.host = "127.0.0.1"
        self.port = 0
        self.clients: list[Client] = []

    def _error(self, _: RequestContext, error: Exception) -> Message | None:
        self.errors.append(error)
        return self.error_response

    def start(self) -> None:
        self.port = self.server.add_listener(
            "PLAINTEXT", self.host, 0, limits=self.listener_limits, **self.listener_options
        )
        self.channel.start()
        self.server.start()

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        self.server.close()
        await self.channel.close()
        await self.pool.close()
        self.timer.close()

    async def connect(
        self, tls: ssl.SSLContext | None = None, *, from_host: str = "127.0.0.1"
    ) -> "Client":
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(self.host, self.port, ssl=tls, local_addr=(from_host, 0)),
            DEADLINE_SECONDS,
        )
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    def raw_socket(self, receive_buffer_bytes: int = 0) -> socket.socket:
        """A connected non-blocking socket."""
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.connect((self.host, self.port))  # the backlog takes it at once
        sock.setblocking(False)
        return sock

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something has come true; fails the test when it never does."""
        await eventually_async(condition, seconds=DEADLINE_SECONDS)


@asynccontextmanager
async def running_network(*entries: HandlerEntry, **options: Any) -> AsyncIterator[Network]:
    """A server on a free port of 127.0.0.1; afterwards nothing of it may be left."""
    before = len(running_tasks())
    network = Network(list(entries), options)
    network.start()
    try:
        yield network
    finally:
        await network.close()
    assert network.server.limits.open == 0
    assert len(running_tasks()) == before


class Client:
    """Sends requests and reads responses as frames; `correlation_id` counts up by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 0

    def send(self, request: Message, version: int = 0) -> int:
        self.correlation_id += 1
        self.writer.write(encode_request(self.correlation_id, "tester", request, version))
        return self.correlation_id

    async def receive_frame(self) -> bytes:
        async with asyncio.timeout(DEADLINE_SECONDS):
            size = SIZE.unpack(await self.reader.readexactly(4))[0]
            return await self.reader.readexactly(size)

    async def receive(self, api_key: int = METADATA, version: int = 0) -> tuple[int, Message]:
        return decode_response(memoryview(await self.receive_frame()), api_key, version)

    async def ask(self, request: Message, version: int = 0) -> Message:
        """One request and its response."""
        sent = self.send(request, version)
        received, response = await self.receive(request.API_KEY, version)
        assert received == sent
        return response

    async def is_closed(self) -> bool:
        """Wait for the server to close the connection; anything else it sends is an error."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()
