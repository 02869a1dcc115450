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
from ottla.broker.metrics.traffic import Traffic
from ottla.broker.observability.broker_state import Observed
from ottla.broker.observability.faults import (
    Fault,
    held_log_faults,
    leader_epoch_fault,
    older_tree_fault,
    topic_znode_faults,
)
from ottla.broker.observability.monitoring import MeasuredParts, build_registry
from ottla.broker.observability.session_statistics import SessionStatistics

if TYPE_CHECKING:
    from ottla.broker.observability.broker_state import BrokerState
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.server.parts import BrokerParts


def observe(parts: BrokerParts) -> Observed:
    """What the state of the broker reads of its parts."""
    metadata = parts.base.metadata
    remote_logs = parts.replicas.remote_logs
    return Observed(
        broker_id=parts.base.broker_id,
        cluster_id=parts.base.cluster_id,
        listeners=len(parts.network.server.listeners),
        controller_id=lambda: metadata.snapshot.controller_id,
        certificates=parts.cluster.tls.certificates,
        descriptors=parts.network.server.descriptors,
        loop=parts.network.stalls.health,
        traffic=partial(_traffic, parts),
        remote_storage=(lambda: None) if remote_logs is None else remote_logs.problem,
        replicas=partial(_replica_faults, parts),
    )


def _replica_faults(parts: BrokerParts) -> list[Fault]:
    control = parts.control
    strays = control.strays
    found = [
        older_tree_fault(strays.newer_zxid),
        leader_epoch_fault([str(key) for key in control.epochs.ahead]),
    ]
    held = [(log.path, each.problem, each.fix) for log, each in strays.held.items()]
    return [
        *(fault for fault in found if fault is not None),
        *held_log_faults(held),
        *topic_znode_faults(control.controller.topic_problems()),
    ]


def _traffic(parts: BrokerParts) -> Traffic:
    network = parts.network.server.statistics
    routes = parts.network.request_channel.routes.values()
    requests = sum(route.statistics.count for route in routes)
    return Traffic(network.bytes_in, network.bytes_out, requests)


def serve_parts(
    endpoint: HttpEndpoint, parts: BrokerParts, state: BrokerState, events: EventLog | None
) -> None:
    """Metrics from now on, and with `events` the console, too."""
    registry = build_registry(_measured(parts, state))
    texts = parts.network.config_describer.broker_texts
    texts[BROKER_STATE] = lambda: json.dumps(state.document())
    if events is not None:
        texts[BROKER_EVENTS] = events.as_json
    remote_logs = parts.replicas.remote_logs
    if remote_logs is not None:
        from ottla.broker.remote.metrics import remote_report

        texts[BROKER_REMOTE] = lambda: remote_report(remote_logs)
    console = None if events is None else _console(parts, events, state)
    endpoint.serve(registry, parts.network.request_channel, parts.base.workers, console)


def _measured(parts: BrokerParts, state: BrokerState) -> MeasuredParts:
    share = parts.coordinators.share
    return MeasuredParts(
        network=parts.network.server,
        request_channel=parts.network.request_channel,
        replica_manager=parts.replicas.manager,
        isr_manager=parts.replicas.isr_manager,
        deferred_validation=parts.replicas.deferred_validation,
        fetch_sessions=parts.network.sessions.cache,
        groups=parts.coordinators.groups,
        coordinated=parts.coordinators.partitions(),
        controller=parts.control.controller,
        metadata=parts.base.metadata,
        workers=parts.base.workers,
        now_ms=parts.base.clock.now_ms,
        client_metrics=parts.base.client_metrics,
        state=state,
        fetchers=parts.replicas.fetchers,
        quotas=parts.quotas.clients,
        session=SessionStatistics(parts.base.store),
        share=None if share is None else (share.partitions, share.sessions),
    )


def _console(parts: BrokerParts, events: EventLog, state: BrokerState) -> Console:
    from ottla.broker.observability.console.access import ConsoleDoor, parse_principal
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.console_parts import ConsoleParts

    config, security = parts.base.config, parts.security
    door = ConsoleDoor.of(config, security.log)
    console_parts = ConsoleParts(
        cluster_id=parts.base.cluster_id,
        client=_cluster_client(parts),
        network=parts.network.server,
        request_channel=parts.network.request_channel,
        workers=parts.base.workers,
        now_ms=parts.base.clock.now_ms,
        state=state.document,
        # A page requests everything there is: what it may not show needs no line in the log.
        allows=security.access_control.allows_silently,
        principal=parse_principal(config.ottla_console_principal),
        read_only=door.read_only,
    )
    return Console(console_parts, events, door)


def _cluster_client(parts: BrokerParts) -> ClusterClient:
    """With connections of its own: a page does not delay what brokers have to say to each other."""
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.observability.console.cluster_client import DEADLINE_MS, ClusterClient
    from ottla.broker.security.audit.changes import audited

    base, cluster, security = parts.base, parts.cluster, parts.security
    remote = InterBrokerClient(
        base.metadata,
        base.config.inter_broker_listener(),
        f"console-{base.broker_id}",
        DEADLINE_MS,
        tls=cluster.tls.peer,
        security=None if cluster.login is None else cluster.login.security,
    )
    return ClusterClient(
        base.broker_id,
        base.metadata,
        parts.network.request_channel.routes,
        remote,
        lambda table: audited(
            security.access_control.protect(list(table)),
            security.log,
            security.delegation_tokens.id_of,
        ),
        security.log,
    )
