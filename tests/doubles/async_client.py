"""A client of a whole cluster on an event loop, for the simulation and for tests.

It routes operations as `BlockingClient` does, over connections that are the broker's own
(`AsyncConnection`). It starts no tasks: callers wait for futures.
"""

import asyncio
import random
from typing import TypeVar

from ottla.protocol.client.aio_connection import DEFAULT_REQUEST_TIMEOUT_MS, AsyncConnection
from ottla.protocol.client.blocking import MAX_CONNECTIONS
from ottla.protocol.client.blocking_connection import (
    connect_failure,
    create_ssl_context,
    monotonic_ms,
)
from ottla.protocol.client.cluster import Address, ClusterState, Leader, parse_bootstrap
from ottla.protocol.client.errors import BrokerConnectionError, ClientError
from ottla.protocol.client.operations import (
    ANY_VERSION,
    GROUP,
    AnyBroker,
    Controller,
    CoordinatorOf,
    LeaderOf,
    Node,
    Operation,
    Operations,
    Route,
    Send,
    Versions,
)
from ottla.protocol.client.security import Security
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition

__all__ = ["AsyncClient", "AsyncConnection"]

T = TypeVar("T")


class AsyncClient:
    """A client of a whole cluster; the same as ``blocking.BlockingClient`` with ``await``.

    For one loop; calls may overlap.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str | None = "ottla",
        security: Security | None = None,
        request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.state = ClusterState(parse_bootstrap(bootstrap))
        self.request_timeout_ms = request_timeout_ms
        self._client_id = client_id
        self._security = security
        self._ssl_context = (
            create_ssl_context(security) if security is not None and security.uses_tls else None
        )
        self._max_connections = max_connections
        self._connections: dict[Address, AsyncConnection] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}  # one for each broker ever met
        self._operations = Operations(
            self.state, monotonic_ms, request_timeout_ms=request_timeout_ms, jitter=random.random
        )

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; requests that wait for responses fail."""
        while self._connections:
            self._connections.popitem()[1].close()

    async def metadata(
        self,
        topics: list[str] | None = None,
        *,
        allow_auto_topic_creation: bool = False,
        timeout_ms: int | None = None,
    ) -> MetadataResponse:
        """See ``BlockingClient.metadata``."""
        deadline_ms = self._deadline(timeout_ms)
        return await self._run(
            self._operations.metadata(
                topics, deadline_ms, allow_auto_topic_creation=allow_auto_topic_creation
            )
        )

    async def leader(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> Leader:
        """See ``BlockingClient.leader``."""
        return await self._run(self._operations.leader(partition, self._deadline(timeout_ms)))

    def forget_leader(self, partition: TopicPartition) -> None:
        """See ``BlockingClient.forget_leader``."""
        self.state.forget_topic(partition.topic)

    async def send(
        self,
        node_id: int | None,
        request: Message,
        *,
        timeout_ms: int | None = None,
        versions: Versions = ANY_VERSION,
    ) -> Message:
        """See ``BlockingClient.send``."""
        route = AnyBroker() if node_id is None else Node(node_id)
        return await self._run(
            self._operations.send_once(request, route, self._deadline(timeout_ms), versions)
        )

    async def call(
        self,
        request: Message,
        route: Route | None = None,
        *,
        timeout_ms: int | None = None,
        versions: Versions = ANY_VERSION,
        resend: bool | None = None,
    ) -> Message:
        """See ``BlockingClient.call``."""
        return await self._run(
            self._operations.call(
                request, route or AnyBroker(), self._deadline(timeout_ms), versions, resend=resend
            )
        )

    async def call_controller(self, request: Message, *, timeout_ms: int | None = None) -> Message:
        """See ``BlockingClient.call_controller``."""
        return await self.call(request, Controller(), timeout_ms=timeout_ms)

    async def call_leader(
        self, partition: TopicPartition, request: Message, *, timeout_ms: int | None = None
    ) -> Message:
        """See ``BlockingClient.call_leader``."""
        return await self.call(request, LeaderOf(partition), timeout_ms=timeout_ms)

    async def call_coordinator(
        self,
        key: str,
        request: Message,
        *,
        key_type: int = GROUP,
        timeout_ms: int | None = None,
    ) -> Message:
        """See ``BlockingClient.call_coordinator``."""
        return await self.call(request, CoordinatorOf(key, key_type), timeout_ms=timeout_ms)

    def _deadline(self, timeout_ms: int | None) -> int:
        return monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)

    async def _run(self, operation: Operation[T]) -> T:
        response: Message | None = None
        failure: ClientError | None = None
        while True:
            try:
                step = operation.send(response) if failure is None else operation.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            response, failure = None, None
            if isinstance(step, Send):
                try:
                    response = await self._send(step)
                except ClientError as error:
                    failure = error
            else:
                await asyncio.sleep(step.duration_ms / 1000)

    async def _send(self, step: Send) -> Message:
        connection = await self._connection(step.address, step.connect_deadline_ms)
        remaining_ms = max(1, step.deadline_ms - monotonic_ms())
        return await connection.request(step.request, remaining_ms, versions=step.versions)

    async def _connection(self, address: Address, deadline_ms: int) -> AsyncConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_usable:
            return connection
        lock = self._connecting.setdefault(address, asyncio.Lock())
        try:
            async with asyncio.timeout(max(1, deadline_ms - monotonic_ms()) / 1000):
                await lock.acquire()
        except TimeoutError as error:
            raise connect_failure(str(address), error) from error
        try:
            return await self._connect(address, deadline_ms)
        finally:
            lock.release()

    async def _connect(self, address: Address, deadline_ms: int) -> AsyncConnection:
        connection = self._connections.get(address)
        if connection is not None:
            if connection.is_usable:  # another caller has just opened it
                return connection
            del self._connections[address]
            connection.close()
        self._make_room(address)
        connection = AsyncConnection(
            address.host,
            address.port,
            client_id=self._client_id,
            security=self._security,
            ssl_context=self._ssl_context,
        )
        self._connections[address] = connection
        try:
            await connection.connect(max(1, deadline_ms - monotonic_ms()))
        except BaseException:
            self._connections.pop(address, None)
            raise
        return connection

    def _make_room(self, address: Address) -> None:
        for other, connection in list(self._connections.items()):
            if len(self._connections) < self._max_connections:
                return
            if connection.in_flight == 0:
                self._connections.pop(other).close()
        if len(self._connections) >= self._max_connections:
            raise BrokerConnectionError(
                f"no connection to broker {address}: all {self._max_connections} that this client "
                "may have are in use (max_connections)",
                broker=str(address),
            )
