"""Metrics of the parts of a broker: network, request channel, partitions, state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.cluster_problems import is_under_replicated
from ottla.broker.metrics.statistics import STAGES, MetricsRegistry, NetworkStatistics, Reading
from ottla.broker.metrics.telemetry.exported import ExportedMetrics
from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
from ottla.broker.net.server import NetworkServer
from ottla.broker.observability.faults import FAULTS
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.fetch_sessions import FetchSessionCache
from ottla.broker.requests.bulk_requests import MAX_AT_ONCE
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.tasks import WorkerPool, running_tasks
from ottla.controller.tree.store import SESSION_CONNECTED, SESSION_EXPIRED, SESSION_SUSPENDED

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.observability.broker_state import BrokerState
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.controller.tree.store import ZnodeStore
    from ottla.protocol.topics import TopicPartition


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
    "wrong_protocol": (
        "ottla_wrong_protocol",
        "Clients that spoke another protocol, such as HTTP or TLS.",
    ),
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
        "Requests of very many elements, which are handled in turns.",
        lambda: bulk.total,
    )
    registry.gauge(
        "ottla_bulk_requests_in_progress",
        f"Bulk requests that are handled in turns now; at most {MAX_AT_ONCE}.",
        lambda: bulk.in_progress,
    )
    registry.gauge(
        "ottla_bulk_requests_waiting",
        "Bulk requests that wait for another one of their client, or for a place.",
        lambda: bulk.waiting,
    )
    registry.gauge(
        "ottla_request_memory_bytes",
        "Bytes of requests in progress.",
        lambda: channel.in_progress_bytes,
    )
    registry.gauge(
        "ottla_request_memory_limit_bytes",
        "Limit of the bytes of requests in progress: queued.max.request.bytes, or a share of the "
        "memory that the process may use.",
        lambda: channel.memory.request_limit,
    )
    pools = channel.memory.pools
    registry.gauge(
        "ottla_memory_pool_bytes",
        "Bytes that requests, responses and records of clients use, or have reserved.",
        lambda: {(pool.name,): pool.used for pool in pools},
        "pool",
    )
    registry.gauge(
        "ottla_memory_pool_limit_bytes",
        "Limit of ottla_memory_pool_bytes.",
        lambda: {(pool.name,): pool.limit for pool in pools},
        "pool",
    )
    registry.gauge(
        "ottla_memory_pool_waiting",
        "Connections and requests that wait until memory of a pool is free.",
        lambda: {(pool.name,): pool.waiting for pool in pools},
        "pool",
    )
    registry.gauge(
        "ottla_memory_set_aside",
        "Partly received requests that returned the memory for the rest, because others waited.",
        lambda: len(channel.memory.aside),
    )
    registry.counter(
        "ottla_memory_stalled_closed",
        "Connections closed because they held memory that others waited for and made no progress.",
        lambda: channel.memory.stalled_total,
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
    """Delayed operations, and the entries of their watch lists."""
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
    """Clients that push metrics (KIP-714), and the series they push."""

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


def end_offset_reader(replicas: ReplicaManager) -> Callable[[TopicPartition], int | None]:
    """Read the high watermark of a partition; None when this broker does not lead it."""

    def end_offset(partition: TopicPartition) -> int | None:
        found = replicas.partitions.get(partition)
        if found is None or not found.is_leader or found.log is None:
            return None
        return found.log.high_watermark

    return end_offset


_GAUGES = {
    "partitions": ("ottla_partitions", "Replicas hosted here."),
    "leaders": ("ottla_leaders", "Partitions led by this broker."),
    "under_replicated": (
        "ottla_under_replicated_partitions",
        "Partitions led here whose in-sync replicas are fewer than their replicas, without those "
        "that a reassignment adds.",
    ),
    "under_min_isr": (
        "ottla_under_min_isr_partitions",
        "Partitions led here that refuse acks=all: in-sync replicas below min.insync.replicas.",
    ),
    "at_min_isr": (
        "ottla_at_min_isr_partitions",
        "Partitions led here that refuse acks=all as soon as one more in-sync replica fails.",
    ),
    "reassigning": ("ottla_reassigning_partitions", "Partitions led here that are reassigned."),
    "offline_replicas": (
        "ottla_offline_replicas",
        "Replicas hosted here in a log directory that is offline.",
    ),
    "log_bytes": ("ottla_log_size_bytes", "Bytes of records in all logs here."),
    "offline_partitions": (
        "ottla_offline_partitions",
        "Partitions of the cluster without a leader, in the metadata of this broker.",
    ),
}


class PartitionTotals:
    """The sums; zero before the first computation. Loop only."""

    def __init__(self, replicas: ReplicaManager, metadata: MetadataCache) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self.values: dict[str, int] = dict.fromkeys(_GAUGES, 0)

    def steps(self) -> Iterator[None]:
        """Compute the sums. Pauses between partitions: some may be added or removed meanwhile, and
        the sums are replaced when all are complete."""
        found = dict.fromkeys(_GAUGES, 0)
        hosted = list(self._replicas.partitions.values())
        found["partitions"] = len(hosted)
        for partition in hosted:
            yield
            if partition.offline:
                found["offline_replicas"] += 1
            if partition.log is not None:
                found["log_bytes"] += partition.log.local.size_in_bytes
            if not partition.is_leader:
                continue
            in_sync = len(partition.isr)
            spare = in_sync - partition.effective_min_isr()
            found["leaders"] += 1
            found["under_replicated"] += is_under_replicated(
                partition.replicas, partition.isr, partition.adding_replicas
            )
            found["under_min_isr"] += spare < 0
            found["at_min_isr"] += spare == 0
            found["reassigning"] += bool(partition.adding_replicas or partition.removing_replicas)
        for topic in list(self._metadata.snapshot.topics.values()):
            for state in topic.partitions.values():
                yield
                found["offline_partitions"] += state.leader < 0
        self.values = found


def add_partitions(
    registry: MetricsRegistry, replicas: ReplicaManager, metadata: MetadataCache
) -> None:
    """Counts of partitions and the size of their logs."""
    totals = PartitionTotals(replicas, metadata)
    registry.preparations.append(totals.steps)
    for field, (name, help_text) in _GAUGES.items():
        registry.gauge(name, help_text, _reader(totals, field))


def _reader(totals: PartitionTotals, field: str) -> Callable[[], float]:
    return lambda: totals.values[field]


_STATES = (SESSION_CONNECTED, SESSION_SUSPENDED, SESSION_EXPIRED)


class SessionStatistics:
    """Counts from its construction on, which is when the session is connected. Loop only."""

    def __init__(self, store: ZnodeStore) -> None:
        self.state = SESSION_CONNECTED
        self.counts = dict.fromkeys(_STATES, 0)
        store.on_session(self._changed)

    def _changed(self, event: str) -> None:
        if event in self.counts:
            self.state = event
            self.counts[event] += 1


def add_session(registry: MetricsRegistry, session: SessionStatistics) -> None:
    """The state of the session and how often it changed."""
    registry.gauge(
        "ottla_zookeeper_session_state",
        "1 for the state of the session with ZooKeeper: connected, suspended or expired.",
        lambda: {(state,): int(state == session.state) for state in _STATES},
        "state",
    )
    registry.counter(
        "ottla_zookeeper_disconnects",
        "How often the connection to ZooKeeper broke.",
        lambda: session.counts[SESSION_SUSPENDED],
    )
    registry.counter(
        "ottla_zookeeper_session_expirations",
        "How often the session with ZooKeeper expired; each time this broker registered again.",
        lambda: session.counts[SESSION_EXPIRED],
    )


def add_state(registry: MetricsRegistry, state: BrokerState) -> None:
    """Readiness, faults, directories, recovery, ZooKeeper, certificates and the event loop."""
    registry.gauge(
        "ottla_ready",
        "1 if the broker is ready for clients, as /readyz says.",
        lambda: int(state.not_ready() is None),
    )

    def faults() -> Reading:
        found = Counter(fault.name for fault in state.faults())
        return {(name,): found[name] for name in FAULTS}

    registry.gauge("ottla_faults", "What is wrong now, by the name of the fault.", faults, "fault")
    registry.gauge(
        "ottla_log_directory_state",
        "1 for the state of a log directory: accepting, full or offline.",
        state.directory_states,
        "path",
        "state",
    )
    registry.gauge(
        "ottla_zookeeper_connected",
        "1 while the session with ZooKeeper is connected, or the broker runs without ZooKeeper.",
        lambda: int(state.zookeeper_connected),
    )
    registry.gauge(
        "ottla_recovered_bytes",
        "Bytes that the recovery of the logs read at the last start.",
        lambda: state.load.recovered_bytes,
    )
    registry.gauge(
        "ottla_remaining_logs_to_load",
        "Logs that the start has not loaded yet.",
        lambda: {(path,): part.remaining_logs for path, part in state.load.directories.items()},
        "path",
    )
    registry.gauge(
        "ottla_remaining_bytes_to_recover",
        "Bytes that the recovery of the logs has not read yet.",
        lambda: {(path,): part.remaining_bytes for path, part in state.load.directories.items()},
        "path",
    )

    def certificates() -> Reading:
        return {(name,): seconds for name, seconds in state.certificate_seconds().items()}

    registry.gauge(
        "ottla_certificate_expires_in_seconds",
        "For how long the certificate of a listener is still valid; negative when it has expired.",
        certificates,
        "listener",
    )
    registry.gauge(
        "ottla_certificate_not_before_timestamp_seconds",
        "From when on the certificate of a listener is valid, in seconds since 1970.",
        lambda: {(name,): dates.not_before for name, dates in state.certificates().items()},
        "listener",
    )
    registry.gauge(
        "ottla_certificate_not_after_timestamp_seconds",
        "Until when the certificate of a listener is valid, in seconds since 1970.",
        lambda: {(name,): dates.not_after for name, dates in state.certificates().items()},
        "listener",
    )
    registry.gauge(
        "ottla_certificate_renewal_rejected",
        "1 while a listener keeps its certificate because the new one in its key store is worse.",
        lambda: {
            (name,): 1.0 if dates.rejected else 0.0 for name, dates in state.certificates().items()
        },
        "listener",
    )

    def lag() -> float:
        return 0.0 if state.observed is None else state.observed.loop.lag_seconds

    def longest_turn() -> float:
        turn = None if state.observed is None else state.observed.loop.longest()
        return 0.0 if turn is None else turn.seconds

    registry.gauge(
        "ottla_loop_lag_seconds", "By how much the last heartbeat of the event loop was late.", lag
    )
    registry.gauge(
        "ottla_loop_longest_recent_turn_seconds",
        "The longest blocked turn of the event loop in the last minute.",
        longest_turn,
    )
