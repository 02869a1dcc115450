"""The quotas and connection limits of a broker, and how the settings change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.python_classes import QUOTA_CALLBACK, QUOTA_INTERFACE, load_class
from ottla.broker.quotas.client_quotas import ClientQuotas, QuotaTable
from ottla.broker.quotas.connection_quotas import (
    ConnectionLimits,
    ConnectionOverrides,
    ListenerLimits,
)
from ottla.broker.quotas.quota_callback import CallbackTable, ClusterMetadata, QuotaCallback

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, MetadataSnapshot
    from ottla.broker.config.broker_config import BrokerConfig


class QuotaLimits(NamedTuple):
    """The limits of all connections, those of each listener, the quotas of clients, and the class
    that computes these, if there is one."""

    connections: ConnectionLimits
    overrides: ConnectionOverrides
    listeners: dict[str, ListenerLimits]
    clients: ClientQuotas
    callback: QuotaCallback | None

    def settings_changed(self, config: BrokerConfig) -> None:
        """After a change of the dynamic settings: connection limits, and the class."""
        self.apply_connection_limits(config)
        if self.callback is not None:
            self.callback.reconfigure(config.texts())

    def stop(self) -> None:
        """No quota changes after this."""
        if self.callback is not None:
            self.callback.close()

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


class _Leaders(Mapping[str, Mapping[int, int]]):
    """The leaders of partitions by topic, read when they are requested."""

    def __init__(self, snapshot: MetadataSnapshot) -> None:
        self._topics = snapshot.topics

    def __getitem__(self, topic: str) -> Mapping[int, int]:
        return {index: each.leader for index, each in self._topics[topic].partitions.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)


def cluster_watcher(
    quotas: QuotaLimits, metadata: MetadataCache, broker_id: int
) -> Callable[[], None] | None:
    """What shows each change of the metadata to the class that computes quotas; None without it."""
    callback = quotas.callback
    if callback is None:
        return None

    def changed() -> None:
        if callback.cluster_changed(ClusterMetadata(broker_id, _Leaders(metadata.snapshot))):
            quotas.clients.limits_changed()

    return changed


def build_quotas(config: BrokerConfig) -> QuotaLimits:
    """The limits of the settings. ConfigError when the class that computes quotas fails."""
    callback = None
    if config.client_quota_callback_class:
        named = (QUOTA_CALLBACK, config.client_quota_callback_class)
        callback = QuotaCallback(load_class(*named, *QUOTA_INTERFACE, config.texts()))

    def new_table(kind: str) -> QuotaTable:
        return QuotaTable() if callback is None else CallbackTable(callback, kind)

    windows = config.quota_window_num, config.quota_window_size_seconds * 1000
    connections = ConnectionLimits(window_count=windows[0], window_ms=windows[1])
    parts = QuotaLimits(
        connections,
        ConnectionOverrides(connections),
        {},
        ClientQuotas(
            window_count=windows[0],
            window_ms=windows[1],
            mutation_window_count=config.controller_quota_window_num,
            mutation_window_ms=config.controller_quota_window_size_seconds * 1000,
            connection_limits=connections,
            new_table=new_table,
        ),
        callback,
    )
    parts.apply_connection_limits(config)
    return parts
