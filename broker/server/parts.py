"""All parts of one broker, built and connected; nothing in here starts anything.

Who depends on whom: storage and the znode tree first; then what keeps state (metadata, replicas,
coordinators, controller); then the handlers; then the network. `server.py` starts and stops them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.cluster.controller_channel import ControllerChannel
from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.identity import wildcard_listeners
from ottla.broker.cluster.inter_broker_client import InterBrokerClient
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.dynamic_config import DynamicConfig
from ottla.broker.config.sasl import peer_security
from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.broker.handlers.table import build_table
from ottla.broker.metrics.loop_stalls import StallMonitor
from ottla.broker.net.listener import SocketSettings
from ottla.broker.net.server import NetworkServer
from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits
from ottla.broker.replication.alter_partition import AlterPartitionManager
from ottla.broker.replication.deferred_validation import DeferredValidation
from ottla.broker.replication.directory_failures import LogDirFailureHandler
from ottla.broker.replication.fetch_sessions import FetchSessions
from ottla.broker.replication.fetcher import FetcherSettings
from ottla.broker.replication.fetcher_manager import FetcherManager
from ottla.broker.replication.isr import IsrManager
from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
from ottla.broker.replication.log_dir_mover import LogDirMover
from ottla.broker.replication.partition import PartitionContext
from ottla.broker.replication.read_replica import RACK_AWARE, RackAwareReplicaSelector
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.broker.replication.throttles import ReplicationThrottles
from ottla.broker.requests.error_response import error_response
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.clock import SystemClock
from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.authorization.access_control import AccessControl
from ottla.broker.security.sasl.delegation_tokens import DelegationTokens
from ottla.broker.security.sasl.scram_credentials import ScramCredentials
from ottla.broker.server.coordinators import Coordinators
from ottla.broker.server.handler_assembly import build_handlers
from ottla.broker.server.scheduler import BrokerScheduler
from ottla.controller.controller import Controller
from ottla.controller.model import BrokerInfo
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import QueuedBrokerChannels
from ottla.controller.runtime import LoopRuntime
from ottla.controller.settings import ControllerSettings
from ottla.protocol.errors import KafkaError
from ottla.storage.config import LogConfig

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.metrics.telemetry.exported import ExportedMetrics
    from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
    from ottla.broker.replication.partition import Partition
    from ottla.broker.security.sasl.listeners import SaslListeners
    from ottla.broker.security.tls.listener_tls import ListenerTls
    from ottla.controller.tree.store import ZnodeStore
    from ottla.protocol.topics import TopicPartition
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log


logger = logging.getLogger("ottla.broker")


class BrokerParts:
    """The parts by name. More attributes than a class should have: it is the one place where all
    of them meet, and nothing but `server.py` sees it."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: tuple[int, str],
        store: ZnodeStore,
        logs: LogManager,
        on_all_disks_failed: Callable[[], None],
    ) -> None:
        """`identity` is the broker id and the cluster id."""
        self.config = config
        self.broker_id, self.cluster_id = identity
        self.store = store
        self.logs = logs
        self.clock = SystemClock()
        self.timer = Timer()
        self.metadata = MetadataCache()
        self.workers = WorkerPool(threads=config.ottla_worker_threads)
        self.runtime = LoopRuntime(spawn)
        self.dynamic_config = DynamicConfig(
            store, self.runtime, config, self.broker_id, LogConfig.from_properties
        )
        self.access_control = AccessControl(config, store, self.runtime, self.metadata)
        self.delegation_tokens = DelegationTokens(config, store, self.runtime)
        self._build_replicas()
        self._build_controller()
        self._build_followers()
        self.coordinators = Coordinators(
            config,
            self.clock,
            self.timer,
            self.metadata,
            self.replica_manager,
            self.channel,
            self.peers,
        )
        self.failures = LogDirFailureHandler(
            logs, self.replica_manager, store, self._partitions_offline, on_all_disks_failed
        )
        self.failures.fetchers = self.fetchers
        self.background = BrokerScheduler(
            config,
            self.clock,
            self.workers,
            logs,
            self.replica_manager,
            self.isr_manager,
            self._tick,
        )
        self._connect()
        self._build_quotas()
        self._build_network()

    def _build_replicas(self) -> None:
        config, clock = self.config, self.clock
        context = PartitionContext(self.broker_id)
        context.lag_time_max_ms = config.replica_lag_time_max_ms
        context.is_alive = lambda broker_id: broker_id in self.metadata.snapshot.brokers
        context.now_ms = lambda: int(clock.monotonic() * 1000)
        self.deferred_validation = DeferredValidation(clock.now_ms)
        self.replica_manager = ReplicaManager(
            context, clock, self.timer, self.metadata, deferred_validation=self.deferred_validation
        )
        self.leader_and_isr = LeaderAndIsrApplier(
            self.replica_manager, self.logs, self.dynamic_config.log_config, clock.now_ms
        )
        self.replica_control = ReplicaControl(
            self.leader_and_isr, self.metadata, self.dynamic_config
        )
        self.mover = LogDirMover(self.logs, self.replica_manager, self.workers, clock.now_ms)

    def _build_controller(self) -> None:
        config = self.config
        self.tls = _listener_tls(config)
        self._peer_tls = None if self.tls is None else self.tls.peer
        self._peer_security = peer_security(config)
        self.peers = InterBrokerClient(
            self.metadata,
            config.inter_broker_listener(),
            f"broker-{self.broker_id}",
            config.request_timeout_ms,
            tls=self._peer_tls,
            security=self._peer_security,
        )
        self.registration = BrokerRegistration(
            self.store,
            BrokerInfo(self.broker_id, ()),  # the endpoints are known when they are bound
            self.clock.now_ms,
            inter_broker_protocol_version=config.inter_broker_protocol_version,
            on_registered=self._registered,
        )
        channels = QueuedBrokerChannels(
            self.broker_id,
            self.replica_control,
            self.runtime,
            connect=self.peers.connect,
            timeout_ms=config.controller_socket_timeout_ms,
        )
        self.controller = Controller(
            self.broker_id,
            self.store,
            self.registration,
            channels,
            controller_settings(config),
            self.runtime,
        )
        self.delegation_tokens.is_controller = lambda: self.controller.is_active
        channels.on_overflow = self.controller.resend_all
        self.channel = ControllerChannel(self.broker_id, self.controller, self.metadata, self.peers)

    def _build_followers(self) -> None:
        config = self.config
        self.isr_manager = IsrManager(
            AlterPartitionManager(self.channel.alter_partition),
            self.replica_manager.complete_delayed_requests,
        )
        self.replica_manager.isr_manager = self.isr_manager
        self.throttles = ReplicationThrottles(config, self.broker_id)
        self.replica_manager.leader_throttle = self.throttles.leader
        settings = FetcherSettings(config, self.broker_id)
        settings.throttle = self.throttles.follower
        settings.tls = self._peer_tls
        settings.security = self._peer_security
        self.fetchers = FetcherManager(
            settings,
            self.replica_manager,
            self.metadata,
            config.inter_broker_listener(),
            self.clock.now_ms,
            config.num_replica_fetchers,
        )
        self.leader_and_isr.fetchers = self.fetchers
        if config.replica_selector_class == RACK_AWARE:
            self.replica_manager.read_replica = RackAwareReplicaSelector(self.metadata)

    def _build_quotas(self) -> None:
        config = self.config
        self.limits = ConnectionLimits()
        endpoints = config.listener_endpoints()
        self.listener_limits = {
            each.listener_name: ListenerLimits(
                protected=len(endpoints) > 1
                and each.listener_name == config.inter_broker_listener()
            )
            for each in endpoints
        }
        self._apply_limits()
        self.quotas = ClientQuotas(
            window_count=config.quota_window_num,
            window_ms=config.quota_window_size_seconds * 1000,
            mutation_window_count=config.controller_quota_window_num,
            mutation_window_ms=config.controller_quota_window_size_seconds * 1000,
            connection_limits=self.limits,
        )
        self.client_metrics = _client_metrics(config, self.clock.monotonic)
        self.dynamic_config.on_client_metrics_change = self._client_metrics_changed
        self.scram_credentials = ScramCredentials()
        self.dynamic_config.on_quota_change = self._user_or_client_changed

    def _build_network(self) -> None:
        config = self.config
        self.endpoints = Endpoints(self.broker_id, self.metadata, wildcard_listeners(config))
        self.creation = AutoTopicCreation(config, self.metadata, self.channel.create_topics)
        self.sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, self.clock.now_ms
        )
        max_bytes = config.queued_max_request_bytes
        self.request_channel = RequestChannel(
            self.access_control.protect(build_table(build_handlers(self))),
            error_response,
            max_requests=config.queued_max_requests,
            max_bytes=max_bytes if max_bytes > 0 else None,
            handler_tasks=config.num_io_threads,
        )
        self.request_channel.throttle_by(self.quotas.throttle_request)
        self.stalls = StallMonitor(self.request_channel.stalls)
        self.network = NetworkServer(
            self.request_channel,
            self.timer,
            self.workers,
            limits=self.limits,
            sockets=SocketSettings(
                send_buffer_bytes=config.socket_send_buffer_bytes,
                receive_buffer_bytes=config.socket_receive_buffer_bytes,
                backlog=config.socket_listen_backlog_size,
            ),
            request_max_bytes=config.socket_request_max_bytes,
            max_idle_ms=config.connections_max_idle_ms,
        )
        self.sasl = self._sasl_listeners()

    def _sasl_listeners(self) -> SaslListeners | None:
        """None without SASL: then nothing of it is imported."""
        if not any(each.uses_sasl for each in self.config.listener_endpoints()):
            return None
        from ottla.broker.security.sasl.listeners import SaslListeners

        return SaslListeners(
            self.config,
            self.scram_credentials,
            self.delegation_tokens,
            self.timer,
            self.clock.now_ms,
            self.network.statistics,
            self.workers.run,
        )

    # -- who is told of what --------------------------------------------------------------------

    def _connect(self) -> None:
        self.leader_and_isr.on_leadership = self.coordinators.on_leadership
        self.leader_and_isr.on_deleted = self._replicas_deleted
        self.leader_and_isr.before_delete = self.background.compaction.deleted
        self.replica_manager.on_truncated = self._log_truncated
        self.replica_manager.on_directory_failure = self.failures.handle
        self.replica_control.on_metadata = self._metadata_changed
        self.dynamic_config.on_topic_change = self._topic_changed
        self.dynamic_config.on_broker_change = self._broker_changed

    def _registered(self, broker_epoch: int) -> None:
        self.replica_control.broker_epoch = broker_epoch
        self.channel.broker_epoch = broker_epoch
        self.fetchers.settings.broker_epoch = broker_epoch

    def _tick(self) -> None:
        self.failures.check()
        if self.tls is not None:
            self.tls.check()

    def _metadata_changed(self, deleted: list[TopicPartition]) -> None:
        self.coordinators.on_partitions_deleted(deleted)
        self.fetchers.metadata_changed()

    def _log_truncated(self, log: Log) -> None:
        self.background.compaction.truncated(log)
        self.mover.truncated(log)

    def _partitions_offline(self, partitions: list[Partition]) -> None:
        self.coordinators.on_leadership([], partitions)

    def _replicas_deleted(self, partitions: list[TopicPartition]) -> None:
        self.coordinators.on_replicas_deleted(partitions)
        hosted = {key[0] for key in self.replica_manager.partitions}
        for topic in {partition.topic for partition in partitions} - hosted:
            self.dynamic_config.forget_topic(topic)

    def _topic_changed(self, topic: str) -> None:
        overrides = self.dynamic_config.topic_overrides(topic)
        self.throttles.apply_topic(topic, overrides)
        if overrides.get("unclean.leader.election.enable") == "true":
            self.controller.enable_topic_unclean_leader_election(topic)
        new = self.dynamic_config.log_config(topic)
        for log in self.logs.logs():
            if log.topic == topic:
                log.update_config(new)

    def _broker_changed(self, names: list[str]) -> None:
        for log in self.logs.logs():
            log.update_config(self.dynamic_config.log_config(log.topic))
        self.throttles.apply_broker(self.mover.throttle)
        self.logs.min_free_bytes = self.config.ottla_log_dir_min_free_bytes
        self.logs.set_producer_expiration(self.config.producer_id_expiration_ms)
        self.background.compaction.settings_changed()
        self._apply_limits()
        self.controller.update_settings(controller_settings(self.config))

    def _user_or_client_changed(self, kind: str, name: str, properties: dict[str, str]) -> None:
        self.scram_credentials.apply(kind, name, properties)
        self.quotas.apply(f"{kind}/{name}", properties)

    def _client_metrics_changed(self, name: str, properties: dict[str, str]) -> None:
        if self.client_metrics is None:
            return
        try:
            self.client_metrics[0].update(name, properties)
        except KafkaError as error:
            # Whoever wrote it did not ask a broker.
            logger.warning("client metrics %s are passed over: %s", name, error.message)

    def _apply_limits(self) -> None:
        """The connection limits, which may change at run time."""
        limits, config = self.limits, self.config
        limits.max_connections = config.max_connections
        limits.max_per_ip = config.max_connections_per_ip
        limits.max_per_ip_overrides = config.connections_per_ip_overrides()
        limits.max_creation_rate = config.max_connection_creation_rate
        for name, listener in self.listener_limits.items():
            listener.max_connections = config.listener_limit(name, "max.connections")
            listener.max_creation_rate = config.listener_limit(name, "max.connection.creation.rate")


def _listener_tls(config: BrokerConfig) -> ListenerTls | None:
    """None without TLS: then `ssl` is not even imported."""
    if not any(each.uses_tls for each in config.listener_endpoints()):
        return None
    from ottla.broker.security.tls.listener_tls import ListenerTls

    return ListenerTls(config)


def _client_metrics(
    config: BrokerConfig, monotonic: Callable[[], float]
) -> tuple[ClientMetricsManager, ExportedMetrics] | None:
    """None when there is no port that would show what clients push."""
    if not config.ottla_metrics_address:
        return None
    from ottla.broker.metrics.telemetry.exported import ExportedMetrics
    from ottla.broker.metrics.telemetry.manager import ClientMetricsManager

    manager = ClientMetricsManager(config.telemetry_max_bytes, lambda: int(monotonic() * 1000))
    exported = ExportedMetrics()
    manager.on_forgotten = exported.forget
    return manager, exported


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    """The controller's part of the settings."""
    return ControllerSettings(
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        delete_topic_enable=config.delete_topic_enable,
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        inter_broker_protocol_version=config.inter_broker_protocol_version,
        inter_broker_listener_name=config.inter_broker_listener(),
        control_plane_listener_name=config.control_plane_listener_name,
        controller_socket_timeout_ms=config.controller_socket_timeout_ms,
    )
