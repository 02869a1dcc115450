"""What the network, the request channel, the purgatories and the loop offer as metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ottla.broker.metrics.statistics import STAGES, MetricsRegistry, NetworkStatistics, Reading
from ottla.broker.metrics.telemetry.exported import ExportedMetrics
from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
from ottla.broker.net.server import NetworkServer
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.fetch_sessions import FetchSessionCache
from ottla.broker.requests.bulk_requests import MAX_AT_ONCE
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.tasks import WorkerPool, running_tasks

# Client software is named by the clients: this many names are counted, the rest is "other".
MAX_SOFTWARE_NAMES = 50

_NETWORK_COUNTERS = {
    "bytes_in": ("ottla_network_received_bytes", "Bytes received from clients."),
    "bytes_out": ("ottla_network_sent_bytes", "Bytes sent to clients."),
    "sendfile_bytes": ("ottla_sendfile_bytes", "Bytes sent by sendfile, part of the sent ones."),
    "connections_accepted": ("ottla_connections_accepted", "Connections accepted."),
    "connections_closed": ("ottla_connections_closed", "Connections closed."),
    "connections_refused": ("ottla_connections_refused", "Connections over a limit."),
    "idle_closed": ("ottla_connections_idle_closed", "Connections closed as idle."),
    "authentications": ("ottla_authentications", "Successful SASL authentications."),
    "failed_authentications": ("ottla_failed_authentications", "Refused SASL authentications."),
    "expired_sessions": (
        "ottla_expired_sessions",
        "Connections closed because their SASL session expired.",
    ),
    "protocol_errors": ("ottla_protocol_errors", "Invalid or unsupported requests."),
    "wrong_protocol": ("ottla_wrong_protocol", "Clients that spoke HTTP, TLS or SSH."),
}


def add_network(registry: MetricsRegistry, server: NetworkServer) -> None:
    """Bytes, connections and client software."""
    for field, (name, help_text) in _NETWORK_COUNTERS.items():
        registry.counter(name, help_text, _field_reader(server.statistics, field))
    registry.gauge(
        "ottla_connections_open",
        "Open connections by listener.",
        lambda: {(name,): len(it.connections) for name, it in server.listeners.items()},
        "listener",
    )
    registry.gauge(
        "ottla_client_software_connections",
        "Open connections by the client's software name and version (KIP-511).",
        lambda: _client_software(server),
        "name",
        "version",
    )


def _field_reader(statistics: NetworkStatistics, field: str) -> Any:
    return lambda: getattr(statistics, field)


def _client_software(server: NetworkServer) -> Reading:
    counts = Counter(
        (connection.client_software_name, connection.client_software_version)
        for connection in server.connections
    )
    readings: dict[tuple[str, ...], float] = dict(counts.most_common(MAX_SOFTWARE_NAMES))
    rest = counts.total() - sum(readings.values())
    if rest:
        readings["other", ""] = rest
    return readings


def add_requests(registry: MetricsRegistry, channel: RequestChannel) -> None:
    """The request queue and each API's requests."""
    registry.gauge("ottla_request_queue_size", "Requests in the queue.", lambda: channel.queued)
    bulk = channel.bulk
    registry.counter(
        "ottla_bulk_requests",
        "Requests of very many elements, which are handled in slices.",
        lambda: bulk.total,
    )
    registry.gauge(
        "ottla_bulk_requests_in_progress",
        f"Bulk requests that are handled in slices now; at most {MAX_AT_ONCE}.",
        lambda: bulk.in_progress,
    )
    registry.gauge(
        "ottla_bulk_requests_waiting",
        "Bulk requests that wait for another one of their client, or for a place.",
        lambda: bulk.waiting,
    )
    registry.gauge(
        "ottla_request_memory_bytes",
        "Bytes of requests in progress (bounded by queued.max.request.bytes).",
        lambda: channel.in_progress_bytes,
    )
    registry.gauge(
        "ottla_request_memory_limit_bytes",
        "queued.max.request.bytes; 0 without a bound.",
        lambda: channel.max_bytes or 0,
    )
    registry.counter(
        "ottla_request_handler_busy_seconds",
        "Time in handlers; its rate is how busy the request handlers are, from 0 to 1.",
        lambda: channel.busy_seconds,
    )
    registry.counter(
        "ottla_requests",
        "Requests with their response sent.",
        lambda: {
            (route.entry.name, str(version)): count
            for route in channel.routes.values()
            for version, count in route.statistics.by_version.items()
        },
        "api",
        "version",
    )
    for field, help_text in (
        ("request_bytes", "Bytes of requests."),
        ("errors", "Requests whose handler failed."),
    ):
        name = "ottla_request_bytes" if field == "request_bytes" else "ottla_request_errors"
        registry.counter(name, help_text, _by_api(channel, field), "api")
    registry.histogram(
        "ottla_request_seconds",
        "From the last byte of a request to the last byte of its response.",
        lambda: {
            (route.entry.name,): route.statistics.total()
            for route in channel.routes.values()
            if route.statistics.by_version
        },
        "api",
    )
    registry.histogram(
        "ottla_request_stage_seconds",
        "Where the time of requests went: in the queue, in the handler (local), waiting for other "
        "brokers or for records (remote), muted by a quota (throttle), encoding and waiting to "
        "send (response), being sent (send).",
        lambda: {
            (route.entry.name, stage): route.statistics.stage(stage)
            for route in channel.routes.values()
            if route.statistics.by_version
            for stage in STAGES
        },
        "api",
        "stage",
    )
    registry.counter(
        "ottla_loop_stalls",
        "Turns of the event loop of more than 50 ms, by what ran.",
        lambda: {(name,): count for name, count in channel.stalls.by_name.items()},
        "name",
    )
    registry.counter(
        "ottla_loop_computing_stalls",
        "Turns of the event loop of more than 50 ms of computing, waiting not counted.",
        lambda: channel.stalls.computing,
    )
    registry.gauge(
        "ottla_loop_longest_stall_seconds",
        "The longest turn of the event loop since the start.",
        lambda: channel.stalls.longest_seconds,
    )


def _by_api(channel: RequestChannel, field: str) -> Any:
    return lambda: {
        (route.entry.name,): getattr(route.statistics, field)
        for route in channel.routes.values()
        if route.statistics.by_version
    }


def add_purgatories(registry: MetricsRegistry, purgatories: Iterable[Purgatory[Any]]) -> None:
    """How many operations wait, and how many entries their watch lists hold."""
    all_of_them = list(purgatories)
    for field, help_text in (
        ("delayed", "Operations that wait."),
        ("watched", "Entries in watch lists, finished operations included."),
    ):
        registry.gauge(
            f"ottla_purgatory_{field}", help_text, _by_purgatory(all_of_them, field), "purgatory"
        )
    registry.counter(
        "ottla_purgatory_expired",
        "Operations that ran out of time.",
        _by_purgatory(all_of_them, "expired_total"),
        "purgatory",
    )


def _by_purgatory(purgatories: list[Purgatory[Any]], field: str) -> Any:
    return lambda: {(purgatory.name,): getattr(purgatory, field) for purgatory in purgatories}


def add_fetch_sessions(registry: MetricsRegistry, cache: FetchSessionCache) -> None:
    """The cache of incremental fetch sessions, bounded by
    max.incremental.fetch.session.cache.slots."""
    registry.gauge("ottla_fetch_sessions", "Incremental fetch sessions.", lambda: len(cache))
    registry.gauge(
        "ottla_fetch_session_partitions",
        "Partitions that the fetch sessions hold.",
        lambda: cache.partitions,
    )
    registry.counter(
        "ottla_fetch_session_evictions",
        "Fetch sessions that made room for others.",
        lambda: cache.evictions_total,
    )


def add_process(registry: MetricsRegistry, worker_pool: WorkerPool) -> None:
    """Tasks and worker threads."""
    registry.gauge("ottla_tasks", "Asyncio tasks that run.", lambda: len(running_tasks()))
    registry.gauge(
        "ottla_worker_pool_accepted",
        "Blocking functions that run or wait for a thread.",
        lambda: worker_pool.accepted,
    )


def add_client_metrics(
    registry: MetricsRegistry, manager: ClientMetricsManager, exported: ExportedMetrics
) -> None:
    """What clients push (KIP-714), and how much of it there is."""

    def clients() -> float:
        manager.forget_silent()
        return manager.instance_count

    registry.gauge("ottla_client_instances", "Clients that may push metrics.", clients)
    registry.counter(
        "ottla_client_points", "Numbers that clients pushed.", lambda: exported.points_total
    )
    registry.counter(
        "ottla_client_points_dropped",
        "Numbers that clients pushed beyond what is kept.",
        lambda: exported.dropped_total,
    )
    registry.families.append(exported.families)
