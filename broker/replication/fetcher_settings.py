"""The settings of all fetchers of a broker, and how they connect to leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from ottla.broker.cluster.broker_epoch import BrokerEpoch
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.protocol.client.aio_connection import AsyncConnection
    from ottla.protocol.client.security import Security


class FetcherSettings:
    """The settings of all fetchers of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        broker_epoch: BrokerEpoch,
        *,
        throttle: ReplicationQuota | None = None,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
        security: Security | None = None,
    ) -> None:
        """`tls` returns how leaders are reached, when the inter-broker listener uses TLS.
        `security`: the login of this broker, when that listener uses SASL."""
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.max_wait_ms = config.replica_fetch_wait_max_ms
        self.min_bytes = config.replica_fetch_min_bytes
        self.max_bytes = config.replica_fetch_response_max_bytes
        self.partition_max_bytes = config.replica_fetch_max_bytes
        self.backoff_ms = config.replica_fetch_backoff_ms
        self.timeout_ms = config.replica_socket_timeout_ms
        self.throttle = throttle
        self._tls = tls
        self._security = security

    async def connect(self, host: str, port: int) -> AsyncConnection:
        """Connects to the leader at an address."""
        from ottla.protocol.client.aio_connection import AsyncConnection

        name = f"broker-{self.broker_id}-fetcher"
        connection = AsyncConnection(
            host,
            port,
            client_id=name,
            ssl_context=None if self._tls is None else self._tls(),
            security=self._security,
        )
        await connection.connect(self.timeout_ms)
        return connection
