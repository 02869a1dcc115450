"""Gives metrics and console the parts that they read, and opens their HTTP port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.observability.monitoring import (
    MeasuredParts,
    build_registry,
    http_address,
    serve_http,
)

if TYPE_CHECKING:
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.server.parts import BrokerParts


async def open_http(
    parts: BrokerParts, is_ready: Callable[[], bool], events: EventLog | None
) -> tuple[HttpEndpoint | None, int]:
    """Starts the HTTP port; returns it with its number, or None and 0 when it is off.

    With `events` it serves the console too. ConfigError when the port cannot be opened.
    """
    address = http_address(parts.config)
    if address is None:
        return None, 0
    registry = build_registry(_measured(parts))
    console = None if events is None else _console(parts, events)
    return await serve_http(
        address, registry, parts.request_channel, parts.workers, is_ready, console
    )


def _measured(parts: BrokerParts) -> MeasuredParts:
    return MeasuredParts(
        network=parts.network,
        request_channel=parts.request_channel,
        replica_manager=parts.replica_manager,
        isr_manager=parts.isr_manager,
        deferred_validation=parts.deferred_validation,
        fetch_sessions=parts.sessions.cache,
        groups=parts.coordinators.groups,
        controller=parts.controller,
        metadata=parts.metadata,
        workers=parts.workers,
        now_ms=parts.clock.now_ms,
        client_metrics=parts.client_metrics,
    )


def _console(parts: BrokerParts, events: EventLog) -> Console:
    from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
    from ottla.broker.observability.console.console import Console
    from ottla.broker.observability.console.console_parts import ConsoleParts

    console_parts = ConsoleParts(
        broker_id=parts.broker_id,
        cluster_id=parts.cluster_id,
        metadata=parts.metadata,
        replica_manager=parts.replica_manager,
        groups=parts.coordinators.groups,
        controller=parts.controller,
        config_describer=ConfigDescriber(
            parts.broker_id, parts.config, parts.dynamic_config, parts.metadata
        ),
        network=parts.network,
        request_channel=parts.request_channel,
        workers=parts.workers,
        now_ms=parts.clock.now_ms,
    )
    return Console(console_parts, events, allow_remote=parts.config.ottla_console_allow_remote)
