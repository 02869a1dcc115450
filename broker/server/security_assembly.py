"""Builds authentication and authorization."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.access_control import AccessControl
from ottla.broker.security.sasl.delegation_tokens import DelegationTokens
from ottla.broker.security.sasl.scram_credentials import ScramCredentials

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import NetworkStatistics
    from ottla.broker.security.sasl.listeners import SaslListeners
    from ottla.broker.server.foundation import Foundation
    from ottla.controller.controller import Controller


class SecurityParts(NamedTuple):
    """What clients log in with, and what they may do."""

    access_control: AccessControl
    delegation_tokens: DelegationTokens
    scram_credentials: ScramCredentials
    log: SecurityLog


def build_security(base: Foundation, controller: Controller) -> SecurityParts:
    """The active controller removes the delegation tokens that have expired."""
    log = SecurityLog(base.timer)
    return SecurityParts(
        AccessControl(base.config, base.store, base.runtime, base.metadata, log),
        DelegationTokens(base.config, base.store, base.runtime, lambda: controller.is_active),
        ScramCredentials(),
        log,
    )


def build_sasl(
    base: Foundation, security: SecurityParts, statistics: NetworkStatistics
) -> SaslListeners | None:
    """None without a SASL listener: then nothing of it is imported."""
    if not any(each.uses_sasl for each in base.config.listener_endpoints()):
        return None
    from ottla.broker.security.sasl.listeners import SaslListeners

    return SaslListeners(
        base.config,
        security.scram_credentials,
        security.delegation_tokens,
        base.timer,
        base.clock.now_ms,
        statistics,
        base.workers.run,
        security.log,
    )
