"""Builds the handlers, the request channel in front of them, and the network server."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
from ottla.broker.handlers.table import build_table
from ottla.broker.metrics.loop_stalls import StallMonitor
from ottla.broker.net.large_frames import LargeFrames
from ottla.broker.net.listener import SocketSettings
from ottla.broker.net.server import NetworkServer
from ottla.broker.replication.fetch_sessions import FetchSessions
from ottla.broker.requests.error_responses import error_response
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.security.audit.changes import audited
from ottla.broker.server.handler_assembly import build_endpoints, build_handlers
from ottla.broker.server.security_assembly import build_sasl

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import Endpoints
    from ottla.broker.observability.tracing import RequestTracing
    from ottla.broker.security.sasl.listeners import SaslListeners
    from ottla.broker.server.control_assembly import ControlParts
    from ottla.broker.server.coordinators import Coordinators
    from ottla.broker.server.foundation import Foundation
    from ottla.broker.server.quota_assembly import QuotaParts
    from ottla.broker.server.replica_assembly import ClusterParts, ReplicaParts
    from ottla.broker.server.security_assembly import SecurityParts


class NetworkParts(NamedTuple):
    """From the socket to the handler. `sasl` is None without a SASL listener, `tracing` unless it
    is enabled."""

    sessions: FetchSessions
    request_channel: RequestChannel
    server: NetworkServer
    stalls: StallMonitor
    sasl: SaslListeners | None
    tracing: RequestTracing | None
    config_describer: ConfigDescriber
    endpoints: Endpoints


def build_network(
    base: Foundation,
    cluster: ClusterParts,
    replicas: ReplicaParts,
    coordinators: Coordinators,
    control: ControlParts,
    quotas: QuotaParts,
    security: SecurityParts,
) -> NetworkParts:
    """Access control stands in front of every handler, and in Fetch itself; before it, changes by
    administrators are written to the security log."""
    config = base.config
    sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, base.clock.now_ms)
    endpoints = build_endpoints(base)
    describer = ConfigDescriber(
        base.broker_id,
        config,
        base.dynamic_config,
        base.metadata,
        coordinators.groups.history,
    )
    handlers = build_handlers(
        base,
        cluster,
        replicas,
        coordinators,
        control,
        quotas,
        security,
        sessions,
        endpoints,
        describer,
    )
    max_bytes = config.queued_max_request_bytes
    channel = RequestChannel(
        audited(
            security.access_control.protect(build_table(handlers, base.features)),
            security.log,
            security.delegation_tokens.id_of,
        ),
        error_response,
        max_requests=config.queued_max_requests,
        max_bytes=max_bytes if max_bytes > 0 else None,
        handler_tasks=config.num_io_threads,
        throttle=quotas.clients.throttle_request,
        early_checks=security.access_control.checks_on_cluster,
        held=base.held,
    )
    tracing = _tracing(base)
    if tracing is not None:
        tracing.install(channel.routes.values())
    server = NetworkServer(
        channel,
        base.timer,
        base.workers,
        limits=quotas.connections,
        sockets=SocketSettings(
            send_buffer_bytes=config.socket_send_buffer_bytes,
            receive_buffer_bytes=config.socket_receive_buffer_bytes,
            backlog=config.socket_listen_backlog_size,
        ),
        request_max_bytes=config.socket_request_max_bytes,
        max_idle_ms=config.connections_max_idle_ms,
        authentication_timeout_ms=config.ottla_authentication_timeout_ms,
        security_log=security.log,
        large_frames=LargeFrames(
            config.ottla_request_max_bytes,
            config.ottla_address_request_max_bytes,
            security.access_control.may_send,
        ),
    )
    return NetworkParts(
        sessions=sessions,
        request_channel=channel,
        server=server,
        stalls=StallMonitor(channel.stalls),
        sasl=build_sasl(base, security, server.statistics),
        tracing=tracing,
        config_describer=describer,
        endpoints=endpoints,
    )


def _tracing(base: Foundation) -> RequestTracing | None:
    """None unless it is enabled: the import takes 0.3 s."""
    if not base.config.ottla_opentelemetry_traces_enable:
        return None
    from ottla.broker.observability.tracing import Peer, RequestTracing

    metadata = base.metadata

    def topic_name(topic_id: bytes) -> str | None:
        return metadata.snapshot.topic_names.get(topic_id)

    return RequestTracing(Peer(base.broker_id, base.cluster_id), topic_name)
