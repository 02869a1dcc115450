"""Builds quotas and connection limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.broker.quotas.connection_overrides import ConnectionOverrides
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig


class QuotaParts(NamedTuple):
    """The limits of all connections, those of each listener, and the quotas of clients."""

    connections: ConnectionLimits
    overrides: ConnectionOverrides
    listeners: dict[str, ListenerLimits]
    clients: ClientQuotas

    def apply_connection_limits(self, config: BrokerConfig) -> None:
        """Takes the connection limits from the settings, at the start and when they change."""
        limits = self.connections
        limits.max_connections = config.max_connections
        limits.max_per_ip = config.max_connections_per_ip
        self.overrides.apply(config.connections_per_ip_overrides())
        limits.max_creation_rate = config.max_connection_creation_rate
        self.apply_listeners(config)

    def apply_listeners(self, config: BrokerConfig) -> None:
        """Takes the limits of the listeners that the settings name. The inter-broker listener is
        protected when it is not the only one (KIP-612)."""
        names = [each.listener_name for each in config.listener_endpoints()]
        for name in [name for name in self.listeners if name not in names]:
            del self.listeners[name]
        for name in names:
            listener = self.listeners.get(name)
            if listener is None:
                listener = self.listeners[name] = ListenerLimits(
                    window_count=config.quota_window_num,
                    window_ms=config.quota_window_size_seconds * 1000,
                )
            listener.protected = len(names) > 1 and name == config.inter_broker_listener()
            listener.max_connections = config.listener_limit(name, "max.connections")
            listener.max_creation_rate = config.listener_limit(name, "max.connection.creation.rate")


def build_quotas(config: BrokerConfig) -> QuotaParts:
    """The limits of the settings."""
    windows = config.quota_window_num, config.quota_window_size_seconds * 1000
    connections = ConnectionLimits(window_count=windows[0], window_ms=windows[1])
    parts = QuotaParts(
        connections,
        ConnectionOverrides(connections),
        {},
        ClientQuotas(
            window_count=windows[0],
            window_ms=windows[1],
            mutation_window_count=config.controller_quota_window_num,
            mutation_window_ms=config.controller_quota_window_size_seconds * 1000,
            connection_limits=connections,
        ),
    )
    parts.apply_connection_limits(config)
    return parts
