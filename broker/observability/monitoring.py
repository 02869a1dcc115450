"""Metrics and console of one broker, and the HTTP port that serves them.

The port is off unless `ottla.metrics.address` is set or `ottla.console.enable` is true.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.net.listener import PortInUse

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
    from ottla.broker.groups.coordinator import GroupCoordinator
    from ottla.broker.metrics.statistics import MetricsRegistry
    from ottla.broker.metrics.telemetry.exported import ExportedMetrics
    from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
    from ottla.broker.net.server import NetworkServer
    from ottla.broker.observability.broker_state import BrokerState
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.observability.metrics_sources import SessionStatistics
    from ottla.broker.quotas.client_quotas import ClientQuotas
    from ottla.broker.replication.deferred_validation import DeferredValidation
    from ottla.broker.replication.fetch_sessions import FetchSessionCache
    from ottla.broker.replication.fetcher_manager import FetcherManager
    from ottla.broker.replication.isr import IsrManager
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.requests.request_channel import RequestChannel
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.broker.share.sessions import ShareSessions
    from ottla.broker.share.share_partitions import SharePartitions
    from ottla.controller.controller import Controller


# Where the console is when no address is set: this machine only.
CONSOLE_ADDRESS = "127.0.0.1:9404"


def http_address(config: BrokerConfig) -> str | None:
    """Where the HTTP port listens; None when neither metrics nor console are served."""
    if config.ottla_metrics_address:
        return config.ottla_metrics_address
    return CONSOLE_ADDRESS if config.ottla_console_enable else None


def event_log(config: BrokerConfig) -> EventLog | None:
    """Collect log lines for the console from now on; None when the console is off."""
    if not config.ottla_console_enable:
        return None
    from ottla.broker.observability.console.event_log import EventLog

    events = EventLog()
    events.attach()
    return events


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, where no host means every address."""
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"ottla.metrics.address: {text!r} is not host:port.")
    return host.strip("[]"), int(port)


class MeasuredParts(NamedTuple):
    """The parts of a broker that metrics are read from."""

    network: NetworkServer
    request_channel: RequestChannel
    replica_manager: ReplicaManager
    isr_manager: IsrManager
    deferred_validation: DeferredValidation
    fetch_sessions: FetchSessionCache
    groups: GroupCoordinator
    coordinated: Sequence[CoordinatedPartitions[Any]]
    controller: Controller
    metadata: MetadataCache
    workers: WorkerPool
    now_ms: Callable[[], int]
    client_metrics: tuple[ClientMetricsManager, ExportedMetrics] | None
    state: BrokerState
    fetchers: FetcherManager
    quotas: ClientQuotas
    session: SessionStatistics
    share: tuple[SharePartitions, ShareSessions] | None


async def open_http(config: BrokerConfig, state: BrokerState) -> tuple[HttpEndpoint | None, int]:
    """Open the HTTP port, which serves health checks from now on; None and 0 when it is off.

    Raises PortInUse, or ConfigError when it cannot be opened for another reason.
    """
    address = http_address(config)
    if address is None:
        return None, 0
    from ottla.broker.metrics.statistics import MetricsRegistry
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.observability.metrics_sources import add_state

    registry = MetricsRegistry()
    add_state(registry, state)
    endpoint = HttpEndpoint(
        healthy=lambda: None,
        ready=state.not_ready,
        warnings=state.warnings,
        status=state.document,
        first_metrics=registry,
        hosts=host_names(config),
    )
    if config.worker is not None:
        await endpoint.start_unix(config.worker.http_socket(config.worker.number))
        return endpoint, 0
    return endpoint, await listen_http(endpoint, address)


def host_names(config: BrokerConfig) -> tuple[str, ...]:
    """The names of this machine that requests to the HTTP port may have."""
    return (
        *config.ottla_metrics_hosts,
        *config.ottla_console_hosts,
        *(each.host for each in config.advertised_endpoints()),
    )


async def listen_http(endpoint: HttpEndpoint, address: str) -> int:
    """Open the port of ottla.metrics.address; returns it. Raises PortInUse or ConfigError."""
    host, port = parse_address(address)
    try:
        return await endpoint.start(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"ottla.metrics.address: cannot listen on {address}: another process uses that "
                "port; stop it (find it with `ss -ltnp`) or choose another port."
            ) from None
        raise ConfigError(
            f"ottla.metrics.address: cannot listen on {address}: {error.strerror or error}."
        ) from None


def build_registry(parts: MeasuredParts) -> MetricsRegistry:
    """Everything that is measured."""
    from ottla.broker.groups.metrics import add_groups
    from ottla.broker.metrics.statistics import MetricsRegistry
    from ottla.broker.metrics.topic_statistics import add_topics
    from ottla.broker.observability import cluster_metrics, metrics_sources
    from ottla.broker.observability.metrics_sources import (
        add_partitions,
        add_session,
        add_state,
        end_offset_reader,
    )

    registry = MetricsRegistry()
    replicas = parts.replica_manager
    metrics_sources.add_network(registry, parts.network)
    metrics_sources.add_requests(registry, parts.request_channel)
    metrics_sources.add_purgatories(
        registry,
        [
            replicas.produce_purgatory,
            replicas.fetch_purgatory,
            replicas.delete_records_purgatory,
            *([] if replicas.remote_fetches is None else [replicas.remote_fetches.purgatory]),
        ],
    )
    metrics_sources.add_fetch_sessions(registry, parts.fetch_sessions)
    metrics_sources.add_process(registry, parts.workers)
    registry.counter(
        "ottla_deferred_validations",
        "Batches whose records were validated in a worker thread.",
        lambda: parts.deferred_validation.total,
    )
    add_state(registry, parts.state)
    cluster_metrics.add_build(registry)
    cluster_metrics.add_replication(registry, parts.isr_manager, parts.fetchers)
    cluster_metrics.add_directories(registry, parts.state.directories)
    cluster_metrics.add_quotas(registry, parts.quotas)
    add_session(registry, parts.session)
    add_partitions(registry, replicas, parts.metadata)
    add_topics(registry, replicas.context.topics)
    add_groups(registry, parts.groups, end_offset_reader(replicas), parts.now_ms)
    if replicas.remote_logs is not None and replicas.remote_fetches is not None:
        from ottla.broker.remote.metrics import add_remote_storage

        add_remote_storage(registry, replicas.remote_logs, replicas.remote_fetches.reader)
    if parts.share is not None:
        from ottla.broker.share.metrics import add_share_partitions

        add_share_partitions(registry, *parts.share)
    _add_coordinators(registry, parts.coordinated)
    cluster_metrics.add_controller(registry, parts.controller, parts.metadata)
    if parts.client_metrics is not None:
        metrics_sources.add_client_metrics(registry, *parts.client_metrics)
    return registry


def _add_coordinators(
    registry: MetricsRegistry, coordinated: Sequence[CoordinatedPartitions[Any]]
) -> None:
    registry.gauge(
        "ottla_coordinator_load_failures",
        "Partitions coordinated here whose load failed or left out what cannot be read.",
        lambda: {(partitions.topic,): partitions.load_failures for partitions in coordinated},
        "topic",
    )
