"""Builds the clients for other brokers, and what appends to, reads and copies the replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.cluster.controller_channel import ControllerChannel
from ottla.broker.cluster.inter_broker_client import InterBrokerClient
from ottla.broker.config.sasl import peer_login
from ottla.broker.replication.deferred_validation import DeferredValidation
from ottla.broker.replication.fetcher import FetcherSettings
from ottla.broker.replication.fetcher_manager import FetcherManager
from ottla.broker.replication.group_commit import GroupCommit
from ottla.broker.replication.isr import AlterPartitionManager, IsrManager
from ottla.broker.replication.log_cleaner import LogCleaner
from ottla.broker.replication.log_dir_mover import LogDirMover
from ottla.broker.replication.partition import (
    RACK_AWARE,
    PartitionContext,
    RackAwareReplicaSelector,
)
from ottla.broker.replication.replica_manager import ReplicaManager
from ottla.broker.replication.throttles import ReplicationThrottles
from ottla.broker.security.tls.late_tls import LateTls

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_manager import RemoteLogManager
    from ottla.broker.security.sasl.broker_login import BrokerLogin
    from ottla.broker.server.foundation import Foundation


class ClusterParts(NamedTuple):
    """How this broker reaches the others. `login` is None without SASL between brokers."""

    tls: LateTls
    login: BrokerLogin | None
    inter_broker_client: InterBrokerClient
    channel: ControllerChannel


class ReplicaParts(NamedTuple):
    """The replicas of this broker and all that works on them. `remote_logs` is None without tiered
    storage."""

    deferred_validation: DeferredValidation
    throttles: ReplicationThrottles
    isr_manager: IsrManager
    manager: ReplicaManager
    group_commit: GroupCommit
    fetchers: FetcherManager
    compaction: LogCleaner
    mover: LogDirMover
    remote_logs: RemoteLogManager | None


def build_cluster(base: Foundation) -> ClusterParts:
    """The channel is to be connected to the controller of this process."""
    config = base.config
    tls = LateTls(config)
    login = _broker_login(base)
    security = None if login is None else login.security
    inter_broker_client = InterBrokerClient(
        base.metadata,
        config.inter_broker_listener(),
        f"broker-{base.broker_id}",
        config.request_timeout_ms,
        tls=tls.peer,
        security=security,
    )
    channel = ControllerChannel(
        base.broker_id, base.broker_epoch, base.metadata, inter_broker_client
    )
    return ClusterParts(tls, login, inter_broker_client, channel)


def _broker_login(base: Foundation) -> BrokerLogin | None:
    """None without SASL between brokers: then nothing of it is imported."""
    if peer_login(base.config) is None:
        return None
    from ottla.broker.security.sasl.broker_login import build_broker_login

    return build_broker_login(base.config, base.timer, base.clock.now_ms, base.workers.run)


def build_replicas(base: Foundation, cluster: ClusterParts) -> ReplicaParts:
    """Replicas without a role yet: `control_assembly` builds what gives them one."""
    config, clock, metadata, events = base.config, base.clock, base.metadata, base.events
    deferred_validation = DeferredValidation(clock.now_ms)
    throttles = ReplicationThrottles(config, base.broker_id)
    isr_manager = IsrManager(
        AlterPartitionManager(cluster.channel.alter_partition),
        events.high_watermark_advanced,
        events.leader_fenced,
        base.timer,
    )
    rack_aware = config.replica_selector_class == RACK_AWARE
    remote_logs = _remote_logs(base, cluster)
    manager = ReplicaManager(
        PartitionContext(
            base.broker_id,
            lag_time_max_ms=config.replica_lag_time_max_ms,
            is_alive=lambda broker_id: broker_id in metadata.snapshot.brokers,
            now_ms=lambda: int(clock.monotonic() * 1000),
        ),
        clock,
        base.timer,
        metadata,
        isr_manager=isr_manager,
        on_directory_failure=events.directory_failed,
        on_truncated=events.log_truncated,
        deferred_validation=deferred_validation,
        leader_throttle=throttles.leader,
        read_replica=RackAwareReplicaSelector(metadata) if rack_aware else None,
        remote_logs=remote_logs,
    )
    if remote_logs is not None:
        from ottla.broker.server.remote_assembly import build_remote_fetches

        manager.remote_fetches = build_remote_fetches(base, remote_logs, manager)
    group_commit = GroupCommit(base.flush_workers.run, clock.now_ms, manager, base.held.run)
    base.logs.flush_later = group_commit.request
    fetchers = FetcherManager(
        FetcherSettings(
            config,
            base.broker_id,
            base.broker_epoch,
            throttle=throttles.follower,
            tls=cluster.tls.peer,
            security=None if cluster.login is None else cluster.login.security,
        ),
        manager,
        group_commit,
        metadata,
        config.inter_broker_listener(),
        clock.now_ms,
        config.num_replica_fetchers,
    )
    return ReplicaParts(
        deferred_validation=deferred_validation,
        throttles=throttles,
        isr_manager=isr_manager,
        manager=manager,
        group_commit=group_commit,
        fetchers=fetchers,
        compaction=LogCleaner(config, clock, base.logs),
        mover=LogDirMover(base.logs, manager, base.workers, group_commit.flush, clock.now_ms),
        remote_logs=remote_logs,
    )


def _remote_logs(base: Foundation, cluster: ClusterParts) -> RemoteLogManager | None:
    """None without tiered storage: then nothing of it is imported."""
    if not base.config.remote_log_storage_system_enable:
        return None
    from ottla.broker.server.remote_assembly import build_remote_logs

    return build_remote_logs(base, cluster.inter_broker_client, cluster.channel.create_topics)
