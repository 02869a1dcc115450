"""Builds the controller, what carries out its requests here, and what reacts to failed disks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.cluster.deleted_topics import DeletedTopicCheck
from ottla.broker.config.policies import Policies, TopicCreation
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.broker.replication.directory_failures import LogDirFailureHandler
from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
from ottla.broker.replication.replica_epochs import ReplicaEpochs
from ottla.broker.replication.stray_logs import StrayCheck
from ottla.broker.server.scheduler import BrokerScheduler
from ottla.controller.controller import Controller
from ottla.controller.model import BrokerInfo
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import QueuedBrokerChannels
from ottla.controller.settings import ControllerSettings, control_versions
from ottla.controller.tree import znodes

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.replication.partition import Partition
    from ottla.broker.server.coordinators import Coordinators
    from ottla.broker.server.foundation import Foundation
    from ottla.broker.server.replica_assembly import ClusterParts, ReplicaParts
    from ottla.controller.admin.placement import Assignment
    from ottla.controller.admin.topic_admin import Admit, NewTopic
    from ottla.protocol.topics import TopicPartition


class ControlParts(NamedTuple):
    """The controller, the registration, and the appliers of its requests."""

    replica_control: ReplicaControl
    leader_and_isr: LeaderAndIsrApplier
    registration: BrokerRegistration
    controller: Controller
    strays: StrayCheck
    epochs: ReplicaEpochs
    deleted_topics: DeletedTopicCheck


class UpkeepParts(NamedTuple):
    """What runs besides requests."""

    failures: LogDirFailureHandler
    scheduler: BrokerScheduler


def build_control(
    base: Foundation,
    cluster: ClusterParts,
    replicas: ReplicaParts,
    coordinators: Coordinators,
    quota_watcher: Callable[[], None] | None = None,
) -> ControlParts:
    """Connects the channel of `cluster` to the controller too. `quota_watcher` is called after
    each change of the metadata."""
    config, metadata = base.config, base.metadata

    def forget_settings(deleted: list[TopicPartition]) -> None:
        """Of deleted topics without a replica here."""
        if not deleted:
            return
        hosted = {key[0] for key in replicas.manager.partitions}
        for topic in {partition.topic for partition in deleted} - hosted:
            base.dynamic_config.forget_topic(topic)
            replicas.throttles.apply_topic(topic, {})

    def replicas_deleted(partitions: list[TopicPartition]) -> None:
        coordinators.on_replicas_deleted(partitions)
        forget_settings(partitions)

    def metadata_changed(deleted: list[TopicPartition]) -> None:
        coordinators.on_partitions_deleted(deleted)
        forget_settings(deleted)
        replicas.fetchers.metadata_changed()
        cluster.inter_broker_client.metadata_changed()
        if quota_watcher is not None:
            quota_watcher()

    remote_logs = replicas.remote_logs

    def leadership_changed(leaders: list[Partition], followers: list[Partition]) -> None:
        coordinators.on_leadership(leaders, followers)
        if remote_logs is not None:
            remote_logs.on_leadership(leaders, followers)

    def leader_epoch_changed(partitions: list[Partition]) -> None:
        coordinators.on_new_leader_epoch(partitions)
        if remote_logs is not None:
            remote_logs.on_leadership(partitions, [])

    def stopped(key: TopicPartition, is_deleted: bool, with_topic: bool) -> None:
        if remote_logs is not None:
            remote_logs.on_stopped(key, is_deleted=is_deleted, with_topic=with_topic)

    epochs = ReplicaEpochs(base.store, base.broker_id, base.broker_epoch)
    applier = LeaderAndIsrApplier(
        replicas.manager,
        base.logs,
        base.dynamic_config.log_config,
        base.clock.now_ms,
        fetchers=replicas.fetchers,
        on_leadership=leadership_changed,
        before_delete=replicas.compaction.deleted,
        on_deleted=replicas_deleted,
        on_new_leader_epoch=leader_epoch_changed,
        on_stopped=stopped,
        epochs=epochs,
    )

    def registered(broker_epoch: int) -> None:
        if broker_epoch < base.broker_epoch.value:
            # By another ensemble, such as a restored one: its epochs start again for all brokers.
            replicas.manager.forget_broker_epochs()
        metadata.forget_deleted()
        base.broker_epoch.registered(broker_epoch)

    strays = StrayCheck(
        *(base.logs, base.store, base.broker_id, applier, metadata),
        log_config=base.dynamic_config.log_config,
        now_ms=base.clock.now_ms,
        run=base.workers.run,
        on_compared=lambda is_older: epochs.registered(is_older=is_older),
    )
    epochs.on_repaired = strays.accept_tree

    def has_log(topic: str, partition: int) -> bool:
        """With the settings of its topic: those of a log that is not served may be older."""
        return base.logs.get(topic, partition) is not None and not strays.is_held(topic, partition)

    replica_control = ReplicaControl(
        applier,
        metadata,
        base.dynamic_config,
        base.broker_epoch,
        metadata_changed,
        strays,
        has_log,
        epochs,
    )
    registration = BrokerRegistration(
        base.store,
        BrokerInfo(base.broker_id, ()),  # the endpoints are known when they are bound
        base.clock.now_ms,
        inter_broker_protocol_version=config.inter_broker_protocol_version,
        on_registered=registered,
        check_replicas=strays.run,
    )
    channels = QueuedBrokerChannels(
        base.broker_id,
        replica_control,
        base.runtime,
        connect=cluster.inter_broker_client.connect,
        timeout_ms=config.controller_socket_timeout_ms,
        on_overflow=base.events.request_queue_overflowed,
    )
    controller = Controller(
        base.broker_id,
        base.store,
        registration,
        channels,
        controller_settings(config),
        base.runtime,
        supported_features=base.features.supported,
        admit_topic=_admit_topic(base.policies),
    )
    cluster.channel.connect(controller)
    deleted_topics = DeletedTopicCheck(
        metadata, base.store, base.broker_epoch, replica_control.forget_topics
    )
    return ControlParts(
        replica_control, applier, registration, controller, strays, epochs, deleted_topics
    )


def _admit_topic(policies: Policies) -> Admit:
    def admit(topic: NewTopic, assignment: Assignment) -> None:
        is_placed_here = topic.assignments is None
        policies.admit_topic(
            TopicCreation(
                topic.name,
                len(assignment) if is_placed_here else None,
                len(next(iter(assignment.values()))) if is_placed_here else None,
                topic.assignments,
                {name: value or "" for name, value in (topic.configs or {}).items()},
            )
        )

    return admit


def build_upkeep(
    base: Foundation,
    cluster: ClusterParts,
    replicas: ReplicaParts,
    coordinators: Coordinators,
    control: ControlParts,
    on_all_disks_failed: Callable[[], None],
) -> UpkeepParts:
    """`on_all_disks_failed` is called when no log directory is left."""
    failures = LogDirFailureHandler(
        base.logs,
        replicas.manager,
        base.store,
        replicas.fetchers,
        lambda partitions: coordinators.on_leadership([], partitions),
        on_all_disks_failed,
        needs_all=control_versions(base.config.inter_broker_protocol_version).leader_and_isr < 1,
    )

    async def look_for_missed_deletions() -> None:
        await control.strays.look_for_unassigned()
        await control.deleted_topics.look()
        await coordinators.groups.missed_deletions.look(
            lambda name: name in base.metadata.snapshot.topics,
            lambda: base.store.children(znodes.TOPICS),
        )

    def tick() -> None:
        failures.check()
        cluster.tls.check()

    scheduler = BrokerScheduler(
        base.config,
        base.clock,
        base.workers,
        base.logs,
        replicas.group_commit,
        replicas.manager,
        replicas.isr_manager,
        replicas.compaction,
        look_for_missed_deletions,
        tick,
    )
    return UpkeepParts(failures, scheduler)


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
        controller_socket_timeout_ms=config.controller_socket_timeout_ms,
    )
