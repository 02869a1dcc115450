"""Gives metrics and console the parts that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.observability.broker_state import Observed
from ottla.broker.observability.monitoring import MeasuredParts, build_registry
from ottla.broker.observability.session_statistics import SessionStatistics

if TYPE_CHECKING:
    from ottla.broker.observability.broker_state import BrokerState
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.server.parts import BrokerParts


def observe(parts: BrokerParts) -> Observed:
    """What the state of the broker reads of its parts."""
    metadata = parts.base.metadata
    tls = parts.cluster.tls
    return Observed(
        broker_id=parts.base.broker_id,
        cluster_id=parts.base.cluster_id,
        listeners=len(parts.network.server.listeners),
        controller_id=lambda: metadata.snapshot.controller_id,
        certificates=dict if tls is None else tls.certificates,
        descriptors=parts.network.server.descriptors,
        loop=parts.network.stalls.health,
    )


def serve_parts(
    endpoint: HttpEndpoint, parts: BrokerParts, state: BrokerState, events: EventLog | None
) -> None:
    """Metrics from now on, and with `events` the console, too."""
    registry = build_registry(_measured(parts, state))
    console = None if events is None else _console(parts, events, state)
    endpoint.serve(registry, parts.network.request_channel, parts.base.workers, console)


def _measured(parts: BrokerParts, state: BrokerState) -> MeasuredParts:
    return MeasuredParts(
        network=parts.network.server,
        request_channel=parts.network.request_channel,
        replica_manager=parts.replicas.manager,
        isr_manager=parts.replicas.isr_manager,
        deferred_validation=parts.replicas.deferred_validation,
        fetch_sessions=parts.network.sessions.cache,
        groups=parts.coordinators.groups,
        transactions=parts.coordinators.transactions,
        controller=parts.control.controller,
        metadata=parts.base.metadata,
        workers=parts.base.workers,
        now_ms=parts.base.clock.now_ms,
        client_metrics=parts.base.client_metrics,
        state=state,
        fetchers=parts.replicas.fetchers,
        quotas=parts.quotas.clients,
        session=SessionStatistics(parts.base.store),
    )


def _console(parts: BrokerParts, events: EventLog, state: BrokerState) -> Console:
    from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
    from ottla.broker.observability.console.access import ConsoleDoor, parse_principal
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.console_parts import ConsoleParts

    console_parts = ConsoleParts(
        broker_id=parts.base.broker_id,
        cluster_id=parts.base.cluster_id,
        metadata=parts.base.metadata,
        replica_manager=parts.replicas.manager,
        groups=parts.coordinators.groups,
        controller=parts.control.controller,
        config_describer=ConfigDescriber(
            parts.base.broker_id, parts.base.config, parts.base.dynamic_config, parts.base.metadata
        ),
        network=parts.network.server,
        request_channel=parts.network.request_channel,
        workers=parts.base.workers,
        now_ms=parts.base.clock.now_ms,
        state=state.document,
        # A page requests everything there is: what it may not show needs no line in the log.
        allows=parts.security.access_control.allows_silently,
        principal=parse_principal(parts.base.config.ottla_console_principal),
    )
    return Console(console_parts, events, ConsoleDoor.of(parts.base.config, parts.security.log))
