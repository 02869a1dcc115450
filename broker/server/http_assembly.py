"""Gives metrics and console the parts that they read."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.handlers.admin.describe_configs import (
    BROKER_EVENTS,
    BROKER_REMOTE,
    BROKER_STATE,
)
from ottla.broker.metrics.statistics import Traffic
from ottla.broker.observability.broker_state import Observed
from ottla.broker.observability.faults import (
    Fault,
    broker_id_fault,
    deletion_faults,
    dynamic_setting_faults,
    gone_log_faults,
    held_log_faults,
    kraft_fault,
    leader_epoch_fault,
    missing_log_faults,
    older_tree_fault,
    security_znode_faults,
    topic_znode_faults,
    unusable_log_faults,
)
from ottla.broker.observability.metrics_sources import SessionStatistics
from ottla.broker.observability.monitoring import MeasuredParts, build_registry
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.observability.broker_state import BrokerState
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.console.schemas import SchemaRegistry
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.server.broker import Broker


def observe(parts: Broker) -> Observed:
    """The parts that the state of the broker is read from."""
    metadata = parts.metadata
    remote_logs = parts.remote_logs
    return Observed(
        broker_id=parts.broker_id,
        cluster_id=parts.cluster_id,
        listeners=len(parts.network_server.listeners),
        controller_id=lambda: metadata.snapshot.controller_id,
        certificates=parts.tls.certificates,
        descriptors=parts.network_server.descriptors,
        loop=parts.stalls.health,
        traffic=partial(_traffic, parts),
        remote_storage=(lambda: None) if remote_logs is None else remote_logs.problem,
        replicas=partial(_replica_faults, parts),
        settings=partial(_settings_faults, parts),
        elected_controller=lambda: (parts.controller.controller_id, parts.inter_broker_address()),
        compactions=lambda: parts.log_cleaner.cleaner.compactions,
    )


def _settings_faults(parts: Broker) -> list[Fault]:
    unusable = parts.unusable_znodes
    return [
        *security_znode_faults(unusable.found, unusable.count),
        *dynamic_setting_faults(parts.config.ignored, parts.broker_id),
    ]


def _replica_faults(parts: Broker) -> list[Fault]:
    strays = parts.strays
    found = [
        broker_id_fault(parts.registration.taken),
        kraft_fault(parts.controller.kraft_problem),
        older_tree_fault(strays.newer_zxid),
        leader_epoch_fault([str(key) for key in parts.replica_epochs.ahead]),
    ]
    served = parts.replica_manager.log_of
    # The controller may have it served without an id, until an operator has decided.
    held = [
        (log.path, each.problem, each.fix)
        for log, each in strays.held.items()
        if served(TopicPartition(log.topic, log.partition)) is not log
    ]
    return [
        *(fault for fault in found if fault is not None),
        *held_log_faults(held),
        *gone_log_faults(parts.logs.gone_logs),
        *unusable_log_faults(parts.logs.unusable_logs),
        *missing_log_faults(list(parts.replica_manager.began_empty.values())),
        *topic_znode_faults(parts.controller.topic_problems()),
        *deletion_faults(parts.controller.waiting_deletions()),
    ]


def _traffic(parts: Broker) -> Traffic:
    network = parts.network_server.statistics
    routes = parts.request_channel.routes.values()
    requests = sum(route.statistics.count for route in routes)
    return Traffic(network.bytes_in, network.bytes_out, requests)


def serve_parts(
    endpoint: HttpEndpoint | None, parts: Broker, state: BrokerState, events: EventLog | None
) -> None:
    """Metrics from now on, and with `events` the console, too. The state is also there by Kafka's
    protocol without an HTTP port, for `ottla workers` and `ottla migrate`."""
    texts = parts.config_describer.broker_texts
    texts[BROKER_STATE] = lambda: json.dumps(state.document())
    if endpoint is None:
        return
    registry = build_registry(_measured(parts, state))
    if events is not None:
        texts[BROKER_EVENTS] = events.as_json
    remote_logs = parts.remote_logs
    if remote_logs is not None:
        from ottla.broker.remote.metrics import remote_report

        texts[BROKER_REMOTE] = lambda: remote_report(remote_logs)
    console = None if events is None else _console(parts, events, state)
    endpoint.serve(registry, parts.request_channel, parts.workers, console)


def _measured(parts: Broker, state: BrokerState) -> MeasuredParts:
    share = parts.coordinators.share
    return MeasuredParts(
        network=parts.network_server,
        request_channel=parts.request_channel,
        replica_manager=parts.replica_manager,
        isr_manager=parts.isr_manager,
        deferred_validation=parts.deferred_validation,
        fetch_sessions=parts.fetch_sessions.cache,
        groups=parts.coordinators.groups,
        coordinated=parts.coordinators.partitions(),
        controller=parts.controller,
        metadata=parts.metadata,
        workers=parts.workers,
        now_ms=parts.clock.now_ms,
        client_metrics=parts.client_metrics,
        state=state,
        fetchers=parts.fetchers,
        quotas=parts.quotas.clients,
        session=SessionStatistics(parts.store),
        share=None if share is None else (share.partitions, share.sessions),
    )


def _console(parts: Broker, events: EventLog, state: BrokerState) -> Console:
    from ottla.broker.config.console import parse_principal
    from ottla.broker.observability.console.access import ConsoleDoor
    from ottla.broker.observability.console.cluster_client import ConsoleParts
    from ottla.broker.observability.console.console import Console
    from ottla.broker.requests.request_context import Principal

    config = parts.config
    door = ConsoleDoor.of(config, parts.security_log)
    console_parts = ConsoleParts(
        cluster_id=parts.cluster_id,
        client=_cluster_client(parts),
        network=parts.network_server,
        request_channel=parts.request_channel,
        workers=parts.workers,
        now_ms=parts.clock.now_ms,
        state=state.document,
        # A page requests everything there is: what it may not show needs no line in the log.
        allows=parts.access_control.allows_silently,
        principal=Principal(*parse_principal(config.ottla_console_principal)),
        read_only=door.read_only,
    )
    return Console(console_parts, events, door, _schema_registry(parts))


def _schema_registry(parts: Broker) -> SchemaRegistry | None:
    config = parts.config
    url = config.ottla_console_schema_registry_url
    if url is None:
        return None
    from ottla.broker.observability.console.schemas import SchemaRegistry

    return SchemaRegistry(url, config.ottla_console_schema_registry_user_info, parts.workers)


def _cluster_client(parts: Broker) -> ClusterClient:
    """With connections of its own: a page does not delay what brokers have to say to each other."""
    from ottla.broker.observability.console.cluster_client import DEADLINE_MS, ClusterClient

    return ClusterClient(
        parts.broker_id,
        parts.metadata,
        parts.request_channel.routes,
        parts.new_inter_broker_client(f"console-{parts.broker_id}", DEADLINE_MS),
        lambda table: parts.guarded(list(table)),
        parts.security_log,
    )
