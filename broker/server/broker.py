"""The composition root: all parts of one broker, built and connected. Nothing here starts anything.

`Broker` builds its parts in an order in which each gets the parts that it uses as constructor
arguments: base, replicas, coordinators, front. Some parts report to others that are built after
them: a failed disk to the coordinators, a changed setting to the controller. They get a method of
the section "reports between parts", which reads the receiving part when it is called. Two parts are
connected once both exist: the controller of this process in the controller channel, and the
listener of changed settings.

`broker_server` opens storage and the znode tree, starts the parts in order and stops them in
reverse; `http_assembly` gives metrics and console what they read. Nothing outside this package sees
all parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.container_network import container_of
from ottla.broker.cluster.controller_channel import ControllerChannel
from ottla.broker.cluster.deleted_topics import DeletedTopicCheck
from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.features import FeatureCache
from ottla.broker.cluster.identity import wildcard_listeners
from ottla.broker.cluster.inter_broker_client import InterBrokerClient
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.dynamic_config import DynamicConfig
from ottla.broker.config.policies import Policies, TopicCreation
from ottla.broker.config.sasl import peer_login
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.broker.handlers.table import build_table
from ottla.broker.metrics.loop_stalls import StallMonitor
from ottla.broker.net.large_frames import LargeFrames
from ottla.broker.net.listener import SocketSettings
from ottla.broker.net.server import NetworkServer
from ottla.broker.replication.deferred_validation import DeferredValidation
from ottla.broker.replication.directory_failures import LogDirFailureHandler
from ottla.broker.replication.fetch_sessions import FetchSessions
from ottla.broker.replication.fetcher import FetcherSettings
from ottla.broker.replication.fetcher_manager import FetcherManager
from ottla.broker.replication.group_commit import SYNCS_MAX, GroupCommit
from ottla.broker.replication.isr import AlterPartitionManager, IsrManager
from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
from ottla.broker.replication.log_cleaner import LogCleaner
from ottla.broker.replication.log_dir_mover import LogDirMover
from ottla.broker.replication.partition import (
    RACK_AWARE,
    PartitionContext,
    RackAwareReplicaSelector,
)
from ottla.broker.replication.replica_epochs import ReplicaEpochs
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.broker.replication.standstill import StandstillGuard
from ottla.broker.replication.stray_logs import StrayCheck
from ottla.broker.replication.throttles import ReplicationThrottles
from ottla.broker.requests.error_responses import error_response
from ottla.broker.requests.held_responses import HeldResponses
from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.clock import Clock, SystemClock
from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.audit.changes import audited
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.access_control import AccessControl
from ottla.broker.security.sasl.delegation_tokens import DelegationTokens
from ottla.broker.security.sasl.scram_credentials import ScramCredentials
from ottla.broker.security.tls.late_tls import LateTls
from ottla.broker.server.config_changes import ConfigChanges
from ottla.broker.server.coordinators import Coordinators
from ottla.broker.server.created_topics import CreatedTopics
from ottla.broker.server.handlers import build_handlers
from ottla.broker.server.memory_watch import MemoryWatch
from ottla.broker.server.open_listeners import OpenListeners
from ottla.broker.server.quota_limits import QuotaLimits, build_quotas, cluster_watcher
from ottla.broker.server.scheduler import BrokerScheduler
from ottla.broker.server.settings import controller_settings, log_config_factory
from ottla.broker.transactions.state import TRANSACTION_VERSION_2
from ottla.controller.admin.own_features import TRANSACTION_VERSION, own_features
from ottla.controller.controller import Controller
from ottla.controller.model import BrokerInfo
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import QueuedBrokerChannels
from ottla.controller.runtime import LoopRuntime
from ottla.controller.settings import control_versions
from ottla.controller.tree import znodes

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.metrics.telemetry.exported import ExportedMetrics
    from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
    from ottla.broker.observability.tracing import RequestTracing
    from ottla.broker.remote.remote_log_manager import RemoteLogManager
    from ottla.broker.replication.partition import Partition
    from ottla.broker.requests.request_context import HandlerEntry
    from ottla.broker.security.sasl.broker_login import BrokerLogin
    from ottla.broker.security.sasl.listeners import SaslListeners
    from ottla.controller.admin.placement import Assignment
    from ottla.controller.admin.topic_admin import NewTopic
    from ottla.controller.tree.store import ZnodeStore
    from ottla.protocol.topics import TopicPartition
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.log.log import Log


class Broker:
    """The parts of one broker. Those that few brokers have are None, and are not imported."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: tuple[int, str],
        store: ZnodeStore,
        logs: LogManager,
        on_all_disks_failed: Callable[[], None],
    ) -> None:
        """`identity` is the broker id and the cluster id. `on_all_disks_failed` is called when no
        log directory is left.

        Raises ConfigError for a policy, a quota callback or a remote store that cannot be used.
        """
        self.config = config
        self.broker_id, self.cluster_id = identity
        self.store = store
        self.logs = logs
        self._build_base()
        self._build_replicas()
        self._build_coordinators(on_all_disks_failed)
        self._build_front()
        self.controller_channel.connect(self.controller)
        self.features.on_lowered = self._feature_lowered
        self.dynamic_config.listener = ConfigChanges(self)

    # -- base: clocks, threads, settings, metadata, clients for other brokers --------------------

    def _build_base(self) -> None:
        config = self.config
        self.clock: Clock = SystemClock()
        self.timer = Timer()
        self.workers = WorkerPool(threads=config.ottla_worker_threads)
        self.flush_workers = WorkerPool(threads=SYNCS_MAX, name="flush")
        self.memory = MemoryBudget()
        self.memory_watch = MemoryWatch(
            self.memory,
            self.timer,
            self.workers,
            request_bytes=config.queued_max_request_bytes,
            client_bytes=config.ottla_address_request_max_bytes,
            memory_bytes=config.ottla_memory_max_bytes,
            processes=1 if config.worker is None else config.worker.workers,
        )
        self.runtime = LoopRuntime(spawn)
        self.held = HeldResponses()
        self.broker_epoch = BrokerEpoch()
        self.metadata = MetadataCache()
        self.unusable_znodes = UnusableZnodes()
        self.dynamic_config = DynamicConfig(
            self.store,
            self.runtime,
            config,
            self.broker_id,
            log_config_factory(config),
            unusable=self.unusable_znodes,
        )
        self.features = FeatureCache(
            self.store, self.runtime, own_features(config.inter_broker_protocol_version)
        )
        self.policies = Policies(config)
        self.client_metrics = self._client_metrics()
        self.quotas: QuotaLimits = build_quotas(config)
        self.tls = LateTls(config)
        self.login = self.new_login()
        self.inter_broker_client = self.new_inter_broker_client(
            f"broker-{self.broker_id}", config.request_timeout_ms
        )
        self.controller_channel = ControllerChannel(
            self.broker_id, self.broker_epoch, self.metadata, self.inter_broker_client
        )

    def _client_metrics(self) -> tuple[ClientMetricsManager, ExportedMetrics] | None:
        """None when no port would show what clients push."""
        if not self.config.ottla_metrics_address:
            return None
        from ottla.broker.metrics.telemetry.exported import ExportedMetrics
        from ottla.broker.metrics.telemetry.manager import ClientMetricsManager

        exported, monotonic = ExportedMetrics(), self.clock.monotonic
        manager = ClientMetricsManager(
            self.config.telemetry_max_bytes, lambda: int(monotonic() * 1000), exported.forget
        )
        return manager, exported

    def new_login(self) -> BrokerLogin | None:
        """As the settings say now; None without SASL between brokers."""
        if peer_login(self.config) is None:
            return None
        from ottla.broker.security.sasl.broker_login import build_broker_login

        return build_broker_login(self.config, self.timer, self.clock.now_ms, self.workers.run)

    def new_inter_broker_client(self, client_id: str, timeout_ms: int) -> InterBrokerClient:
        """A client with connections of its own to the other brokers."""
        return InterBrokerClient(
            self.metadata,
            self.config.inter_broker_listener(),
            client_id,
            timeout_ms,
            tls=self.tls.peer,
            security=None if self.login is None else self.login.security,
        )

    # -- replicas: they have no role until the controller gives them one -------------------------

    def _build_replicas(self) -> None:
        config, clock, metadata = self.config, self.clock, self.metadata
        self.deferred_validation = DeferredValidation(clock.now_ms, self.memory.records)
        self.throttles = ReplicationThrottles(config, self.broker_id)
        self.isr_manager = IsrManager(
            AlterPartitionManager(self.controller_channel.alter_partition),
            self._high_watermark_advanced,
            self._leader_fenced,
            self.timer,
        )
        self.remote_logs = self._remote_logs()
        rack_aware = config.replica_selector_class == RACK_AWARE
        self.replica_manager = ReplicaManager(
            PartitionContext(
                self.broker_id,
                lag_time_max_ms=config.replica_lag_time_max_ms,
                is_alive=lambda broker_id: broker_id in metadata.snapshot.brokers,
                now_ms=lambda: int(clock.monotonic() * 1000),
            ),
            clock,
            self.timer,
            metadata,
            isr_manager=self.isr_manager,
            on_directory_failure=self._directory_failed,
            on_truncated=self._log_truncated,
            deferred_validation=self.deferred_validation,
            leader_throttle=self.throttles.leader,
            read_replica=RackAwareReplicaSelector(metadata) if rack_aware else None,
            remote_logs=self.remote_logs,
            socket_timeout_ms=config.replica_socket_timeout_ms,
        )
        self.standstill = self.replica_manager.standstill = StandstillGuard(
            self.store, self.broker_id, self.timer, self.replica_manager.context.now_ms
        )
        if self.remote_logs is not None:
            from ottla.broker.server.tiered_storage import build_remote_fetches

            self.replica_manager.remote_fetches = build_remote_fetches(
                config, clock, self.timer, self.remote_logs, self.replica_manager
            )
        self.group_commit = GroupCommit(
            self.flush_workers.run, clock.now_ms, self.replica_manager, self.held.run
        )
        self.logs.flush_later = self.group_commit.request
        self.fetchers = FetcherManager(
            FetcherSettings(
                config,
                self.broker_id,
                self.broker_epoch,
                throttle=self.throttles.follower,
                tls=self.tls.peer,
                security=None if self.login is None else self.login.security,
            ),
            self.replica_manager,
            self.group_commit,
            metadata,
            config.inter_broker_listener(),
            clock.now_ms,
            config.num_replica_fetchers,
        )
        self.log_cleaner = LogCleaner(config, clock, self.logs)
        self.mover = LogDirMover(
            self.logs, self.replica_manager, self.workers, self.group_commit.flush, clock.now_ms
        )

    def _remote_logs(self) -> RemoteLogManager | None:
        """None without tiered storage."""
        if not self.config.remote_log_storage_system_enable:
            return None
        from ottla.broker.server.tiered_storage import build_remote_logs

        return build_remote_logs(
            self.config,
            self.clock,
            (self.broker_id, self.cluster_id),
            self.metadata,
            self.inter_broker_client,
            self.controller_channel.create_topics,
            self.logs.checkpoint_log_starts,
            self.dynamic_config.topic_overrides,
        )

    # -- coordinators: of groups and transactions; the controller and what carries out its requests

    def _build_coordinators(self, on_all_disks_failed: Callable[[], None]) -> None:
        config, store, clock = self.config, self.store, self.clock
        self.coordinators = Coordinators(
            config,
            clock,
            self.timer,
            self.held,
            self.metadata,
            self.replica_manager,
            self.controller_channel,
            self.inter_broker_client,
            store,
            self.dynamic_config.group_configs,
            self.features.transaction_version,
        )
        self._quota_watcher = cluster_watcher(self.quotas, self.metadata, self.broker_id)
        self.replica_epochs = ReplicaEpochs(store, self.broker_id, self.broker_epoch)
        self.leader_and_isr = LeaderAndIsrApplier(
            self.replica_manager,
            self.logs,
            self.dynamic_config.log_config,
            clock.now_ms,
            fetchers=self.fetchers,
            on_leadership=self._leadership_changed,
            before_delete=self.log_cleaner.deleted,
            on_deleted=self._replicas_deleted,
            on_new_leader_epoch=self._leader_epoch_changed,
            on_stopped=self._replica_stopped,
            epochs=self.replica_epochs,
        )
        self.strays = StrayCheck(
            self.logs,
            store,
            self.broker_id,
            self.leader_and_isr,
            self.metadata,
            log_config=self.dynamic_config.log_config,
            now_ms=clock.now_ms,
            run=self.workers.run,
            on_compared=lambda is_older: self.replica_epochs.registered(is_older=is_older),
        )
        self.replica_epochs.on_repaired = self.strays.accept_tree
        self.replica_control = ReplicaControl(
            self.leader_and_isr,
            self.metadata,
            self.dynamic_config,
            self.broker_epoch,
            self._metadata_changed,
            self.strays,
            self._has_log,
            self.replica_epochs,
            on_leaders=self.standstill.told,
        )
        self.deleted_topics = DeletedTopicCheck(
            self.metadata, store, self.broker_epoch, self.replica_control.forget_topics
        )
        self._build_controller()
        versions = control_versions(config.inter_broker_protocol_version)
        self.failures = LogDirFailureHandler(
            self.logs,
            self.replica_manager,
            store,
            self.fetchers,
            lambda partitions: self.coordinators.on_leadership([], partitions),
            on_all_disks_failed,
            needs_all=versions.leader_and_isr < 1,
        )
        self.created_topics = CreatedTopics(
            config.ottla_create_topics, self.controller_channel.create_topics
        )
        self.scheduler = BrokerScheduler(
            config,
            clock,
            self.workers,
            self.logs,
            self.group_commit,
            self.replica_manager,
            self.isr_manager,
            self.log_cleaner,
            self._look_for_missed_deletions,
            self._check_every_second,
            self.unusable_znodes.look,
        )

    def _build_controller(self) -> None:
        config = self.config
        self.registration = BrokerRegistration(
            self.store,
            BrokerInfo(self.broker_id, ()),  # the endpoints are known when they are bound
            self.clock.now_ms,
            inter_broker_protocol_version=config.inter_broker_protocol_version,
            on_registered=self._registered,
            on_taken=self._id_taken,
            check_replicas=self.strays.run,
        )
        channels = QueuedBrokerChannels(
            self.broker_id,
            self.replica_control,
            self.runtime,
            connect=self.inter_broker_client.connect,
            timeout_ms=config.controller_socket_timeout_ms,
            on_overflow=self._request_queue_overflowed,
        )
        self.controller = Controller(
            self.broker_id,
            self.store,
            self.registration,
            channels,
            controller_settings(config),
            self.runtime,
            supported_features=self.features.supported,
            admit_topic=self._admit_topic,
            on_kraft=self._kraft_took_over,
        )

    # -- front: authentication, authorization, handlers, listeners -------------------------------

    def _build_front(self) -> None:
        """Access control stands in front of every handler, and in Fetch itself; before it, changes
        by administrators are written to the security log."""
        config = self.config
        self.security_log = SecurityLog(self.timer)
        self.access_control = AccessControl(
            config,
            self.store,
            self.runtime,
            self.metadata,
            self.security_log,
            self.unusable_znodes,
        )
        self.delegation_tokens = DelegationTokens(
            config,
            self.store,
            self.runtime,
            lambda: self.controller.is_active,
            self.unusable_znodes,
        )
        self.scram_credentials = ScramCredentials()
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, self.clock.now_ms
        )
        container = container_of(
            {each.listener_name for each in config.advertised_endpoints() if not each.host}
        )
        self.endpoints = Endpoints(
            self.broker_id,
            self.metadata,
            wildcard_listeners(config, container),
            container,
            is_worker=config.worker is not None,
        )
        self.config_describer = ConfigDescriber(
            self.broker_id,
            config,
            self.dynamic_config,
            self.metadata,
            self.coordinators.groups.history,
        )
        self.request_channel = RequestChannel(
            self.guarded(
                build_table(
                    build_handlers(self), self.features, self.coordinators.support.not_offered
                )
            ),
            error_response,
            max_requests=config.queued_max_requests,
            memory=self.memory,
            handler_tasks=config.num_io_threads,
            throttle=self.quotas.clients.throttle_request,
            early_checks=self.access_control.checks_on_cluster,
            held=self.held,
        )
        self.stalls = StallMonitor(self.request_channel.stalls)
        self.tracing = self._tracing()
        if self.tracing is not None:
            self.tracing.install(self.request_channel.routes.values())
        self.network_server = NetworkServer(
            self.request_channel,
            self.timer,
            self.workers,
            limits=self.quotas.connections,
            sockets=SocketSettings(
                send_buffer_bytes=config.socket_send_buffer_bytes,
                receive_buffer_bytes=config.socket_receive_buffer_bytes,
                backlog=config.socket_listen_backlog_size,
            ),
            request_max_bytes=config.socket_request_max_bytes,
            max_idle_ms=config.connections_max_idle_ms,
            authentication_timeout_ms=config.ottla_authentication_timeout_ms,
            security_log=self.security_log,
            large_frames=LargeFrames(
                config.ottla_request_max_bytes,
                self.access_control.may_send,
            ),
        )
        self.listeners = OpenListeners(
            config,
            self.broker_id,
            self.timer,
            self.tls,
            self.quotas,
            self.network_server,
            self.endpoints,
            self.registration,
            self._sasl_listeners,
        )

    def guarded(self, table: list[HandlerEntry]) -> list[HandlerEntry]:
        """The handler table with the checks of the authorizer and the security log in front."""
        protected = self.access_control.protect(table)
        return audited(protected, self.security_log, self.delegation_tokens.id_of)

    def _tracing(self) -> RequestTracing | None:
        """None unless it is enabled: the import takes 0.3 s."""
        if not self.config.ottla_opentelemetry_traces_enable:
            return None
        from ottla.broker.observability.tracing import Peer, RequestTracing

        metadata = self.metadata

        def topic_name(topic_id: bytes) -> str | None:
            return metadata.snapshot.topic_names.get(topic_id)

        return RequestTracing(Peer(self.broker_id, self.cluster_id), topic_name)

    def _sasl_listeners(self) -> SaslListeners:
        """Built for the first SASL listener."""
        from ottla.broker.security.sasl.listeners import SaslListeners

        return SaslListeners(
            self.config,
            self.scram_credentials,
            self.delegation_tokens,
            self.timer,
            self.clock.now_ms,
            self.network_server.statistics,
            self.workers.run,
            self.security_log,
        )

    # -- reports between parts --------------------------------------------------------------------

    def _feature_lowered(self, name: str, level: int) -> None:
        """Clients learn the level with their next connection, and change to the older protocol
        after the transaction that they have."""
        if name != TRANSACTION_VERSION or level >= TRANSACTION_VERSION_2:
            return
        for connection in self.network_server.connections:
            if connection.raises_epochs:
                connection.close(f"{name} is {level} now, which the client has to learn")

    def _high_watermark_advanced(self, partition: Partition) -> None:
        """A change of the in-sync replicas moved the high watermark."""
        self.replica_manager.complete_delayed_requests(partition)

    def _leader_fenced(self, partition: Partition) -> None:
        """The controller has a higher leader epoch, and did not send it for a while."""
        self.leader_and_isr.step_down(partition, "the controller fenced its leader epoch")

    def _log_truncated(self, log: Log) -> None:
        """A follower truncated its log."""
        self.log_cleaner.truncated(log)
        self.mover.truncated(log)

    def _directory_failed(self, directory: str) -> None:
        """An append or a read found that a log directory has failed."""
        self.failures.handle(directory)

    def _leadership_changed(self, leaders: list[Partition], followers: list[Partition]) -> None:
        self.coordinators.on_leadership(leaders, followers)
        if self.remote_logs is not None:
            self.remote_logs.on_leadership(leaders, followers)

    def _leader_epoch_changed(self, partitions: list[Partition]) -> None:
        self.coordinators.on_new_leader_epoch(partitions)
        if self.remote_logs is not None:
            self.remote_logs.on_leadership(partitions, [])

    def _replica_stopped(self, key: TopicPartition, is_deleted: bool, with_topic: bool) -> None:
        if self.remote_logs is not None:
            self.remote_logs.on_stopped(key, is_deleted=is_deleted, with_topic=with_topic)

    def _replicas_deleted(self, partitions: list[TopicPartition]) -> None:
        self.coordinators.on_replicas_deleted(partitions)
        self._forget_settings(partitions)

    def _metadata_changed(self, deleted: list[TopicPartition]) -> None:
        self.coordinators.on_partitions_deleted(deleted)
        self._forget_settings(deleted)
        self.fetchers.metadata_changed()
        self.inter_broker_client.metadata_changed()
        self.coordinators.support.metadata_changed()
        if self._quota_watcher is not None:
            self._quota_watcher()

    def _forget_settings(self, deleted: list[TopicPartition]) -> None:
        """Of deleted topics without a replica here."""
        for topic in {partition.topic for partition in deleted}:
            if not self.replica_manager.hosts_topic(topic):
                self.dynamic_config.forget_topic(topic)
                self.throttles.apply_topic(topic, {})

    def _registered(self, broker_epoch: int) -> None:
        if broker_epoch < self.broker_epoch.value:
            # By another ensemble, such as a restored one: its epochs start again for all brokers.
            self.replica_manager.forget_broker_epochs()
        self.metadata.forget_deleted()
        self.broker_epoch.registered(broker_epoch)
        self.standstill.registered(broker_epoch)

    def _id_taken(self, problem: str) -> None:
        """A machine that was paused wakes up, and another one has taken its place."""
        self.broker_epoch.taken()
        self._leave_service(problem)

    def _kraft_took_over(self, problem: str, controller_epoch: int) -> None:
        """Requests of the controllers before, of which one may be applied just now, are stale."""
        known = self.leader_and_isr.controller_epoch
        self.leader_and_isr.controller_epoch = max(known, controller_epoch)
        self._leave_service(problem)

    def why_out_of_service(self) -> str:
        """Why this broker leads nothing though it runs, as text; empty while it is in service."""
        return self.controller.kraft_problem or self.registration.taken

    def inter_broker_address(self) -> str:
        """Where other brokers look for this one, as text."""
        info = self.registration.info
        endpoint = info.endpoint(self.config.inter_broker_listener())
        return "no address" if endpoint is None else znodes.format_endpoint(endpoint)

    def _leave_service(self, problem: str) -> None:
        """What this broker would acknowledge now would be lost with its logs."""
        for partition in self.replica_manager.led_partitions():
            self.leader_and_isr.step_down(partition, problem)
            # When the other one is gone, the controller may have elected this broker in the epoch
            # that it has: there was no other leader meanwhile.
            partition.leader_epoch -= 1

    def _has_log(self, topic: str, partition: int) -> bool:
        """With the settings of its topic: those of a log that is not served may be older."""
        is_open = self.logs.get(topic, partition) is not None
        return is_open and not self.strays.is_held(topic, partition)

    def _request_queue_overflowed(self, broker_id: int) -> None:
        """The controller's requests to a broker were dropped: it is to send the full state."""
        self.controller.resend_all(broker_id)

    def _admit_topic(self, topic: NewTopic, assignment: Assignment) -> None:
        """Raises KafkaError when the policy rejects a new topic."""
        is_placed_here = topic.assignments is None
        self.policies.admit_topic(
            TopicCreation(
                topic.name,
                len(assignment) if is_placed_here else None,
                len(next(iter(assignment.values()))) if is_placed_here else None,
                topic.assignments,
                {name: value or "" for name, value in (topic.configs or {}).items()},
            )
        )

    async def _look_for_missed_deletions(self) -> None:
        await self.strays.look_for_unassigned()
        await self.deleted_topics.look()
        await self.coordinators.groups.missed_deletions.look(
            lambda name: name in self.metadata.snapshot.topics,
            lambda: self.store.children(znodes.TOPICS),
        )

    def _check_every_second(self) -> None:
        self.failures.check()
        self.tls.check()
