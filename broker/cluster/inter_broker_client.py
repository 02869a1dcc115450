"""The other brokers of the cluster: requests to them on the inter-broker listener.

One connection a broker, opened on first use and closed when it failed. The controller's requests
have connections of their own (`connect`), so that they never wait behind others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.controller.model import BrokerInfo
    from ottla.controller.requests.broker_channels import Connection
    from ottla.protocol.client.aio_connection import AsyncConnection
    from ottla.protocol.client.security import Security
    from ottla.protocol.message import Message
    from ottla.protocol.messages.add_partitions_to_txn import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
    )
    from ottla.protocol.messages.write_txn_markers import (
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )


class InterBrokerClient:
    """Sends requests to brokers by id. Loop only."""

    def __init__(
        self,
        metadata: MetadataCache,
        listener_name: str,
        client_id: str,
        timeout_ms: int,
        *,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
        security: Security | None = None,
    ) -> None:
        """`listener_name` is the inter-broker listener, reached with the context
        that `tls` returns, if there is one, and
        with the SASL login of `security`; `timeout_ms` is that of each request."""
        self.timeout_ms = timeout_ms
        self._metadata = metadata
        self._listener_name = listener_name
        self._client_id = client_id
        self._tls = tls
        self._security = security
        self._connections: dict[tuple[str, int], AsyncConnection] = {}
        # The address of each connection that is being opened, by what gives it up.
        self._opening: dict[asyncio.Timeout, tuple[str, int]] = {}

    async def request(self, broker_id: int, request: Message) -> Message:
        """Send to a live broker, in its newest version; may raise."""
        return await self._request(await self._to_broker(broker_id), request, None)

    async def request_in_version(
        self, broker_id: int, api_key: int, newest_version: int, build: Callable[[int], Message]
    ) -> Message:
        """Send what `build` returns for the newest version, up to `newest_version`, that the
        broker has.

        Raises UnsupportedApiError if it has none; nothing is sent then, and the connection stays:
        other requests share it.
        """
        from ottla.protocol.client.errors import UnsupportedApiError

        connection = await self._to_broker(broker_id)
        low, high = connection.versions.get(api_key, (0, -1))
        version = min(newest_version, high)
        if version < low:
            raise UnsupportedApiError(
                f"broker {broker_id} has versions {low} to {high} of API {api_key}, "
                f"at most {newest_version} can be sent"
            )
        return await self._request(connection, build(version), version)

    async def versions_of(self, broker_id: int) -> dict[int, tuple[int, int]]:
        """Lowest and highest version by API key that a live broker offers; may raise."""
        return (await self._to_broker(broker_id)).versions

    async def _to_broker(self, broker_id: int) -> AsyncConnection:
        endpoint = self._metadata.snapshot.alive(broker_id, self._listener_name)
        if endpoint is None:
            raise ConnectionError(f"broker {broker_id} is not registered on {self._listener_name}")
        return await self._shared(endpoint.host, endpoint.port)

    async def _request(
        self, connection: AsyncConnection, request: Message, version: int | None
    ) -> Message:
        try:
            return await connection.request(request, self.timeout_ms, version=version)
        except Exception:
            self._forget(connection)
            raise

    async def write_markers(
        self, broker_id: int, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Transaction markers for partitions that another broker leads."""
        return cast("WriteTxnMarkersResponse", await self.request(broker_id, request))

    async def verify_partitions(
        self, broker_id: int, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """A question to the coordinator of a transaction."""
        return cast("AddPartitionsToTxnResponse", await self.request(broker_id, request))

    async def connect(self, broker: BrokerInfo, timeout_ms: int) -> Connection:
        """A connection of its own, for the controller's requests to `broker`."""
        endpoint = broker.endpoint(self._listener_name)
        if endpoint is None:
            raise ConnectionError(
                f"broker {broker.broker_id} has no listener {self._listener_name}"
            )

        async def open_one() -> AsyncConnection:
            return await self._open(endpoint.host, endpoint.port, timeout_ms)

        return _OwnedConnection(await open_one(), open_one)

    def with_timeout(self, timeout_ms: int) -> InterBrokerClient:
        """Another client with connections of its own, for requests that take long; its owner closes
        it."""
        return InterBrokerClient(
            self._metadata,
            self._listener_name,
            self._client_id,
            timeout_ms,
            tls=self._tls,
            security=self._security,
        )

    def metadata_changed(self) -> None:
        """Give up the connections to brokers that are not live any more.

        Over a network that drops packets a request waits for its whole timeout otherwise:
        AlterPartition would go to the next controller only after that.
        """
        brokers = self._metadata.snapshot.brokers.values()
        ends = (broker.endpoints.get(self._listener_name) for broker in brokers)
        live = {(end.host, end.port) for end in ends if end is not None}
        for address, connection in list(self._connections.items()):
            if address not in live:
                self._forget(connection)
        for scope, address in self._opening.items():
            if address not in live:
                scope.reschedule(0.0)

    def close(self) -> None:
        """Close all shared connections."""
        for connection in list(self._connections.values()):
            self._forget(connection)

    async def _shared(self, host: str, port: int) -> AsyncConnection:
        found = self._connections.get((host, port))
        if found is not None and found.is_usable:
            return found
        connection = await self._open_to_live(host, port)
        other = self._connections.get((host, port))
        if other is not None and other.is_usable:
            connection.close()  # Another caller connected meanwhile.
            return other
        self._connections[host, port] = connection
        return connection

    async def _open_to_live(self, host: str, port: int) -> AsyncConnection:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._opening[scope] = (host, port)
                return await self._open(host, port, self.timeout_ms)
        except TimeoutError:
            if scope.expired():
                raise ConnectionError(f"the broker at {host}:{port} is not live") from None
            raise
        finally:
            self._opening.pop(scope, None)

    async def _open(self, host: str, port: int, timeout_ms: int) -> AsyncConnection:
        from ottla.protocol.client.aio_connection import AsyncConnection

        connection = AsyncConnection(
            host,
            port,
            client_id=self._client_id,
            ssl_context=None if self._tls is None else self._tls(),
            security=self._security,
        )
        await connection.connect(timeout_ms)
        return connection

    def _forget(self, connection: AsyncConnection) -> None:
        for address, each in list(self._connections.items()):
            if each is connection:
                del self._connections[address]
        connection.close()


class _OwnedConnection:
    """A connection for the controller's channels."""

    def __init__(
        self, connection: AsyncConnection, open_one: Callable[[], Awaitable[AsyncConnection]]
    ) -> None:
        self._connection = connection
        self._open_one = open_one

    async def request(self, request: Message, version: int, timeout_ms: int) -> Message:
        if not self._connection.is_usable:
            # Its session is near the end that the other broker has set.
            self._connection.close()
            self._connection = await self._open_one()
        return await self._connection.request(request, timeout_ms, version=version)

    async def close(self) -> None:
        self._connection.close()
