"""Who may do what: ACLs, super users, and a line of the security log for each denial (KIP-11, 290).

Mirrors `kafka.security.authorizer.AclAuthorizer`, whose ACLs it shares through the znode tree.
"""

from __future__ import annotations

from logging import DEBUG
from typing import TYPE_CHECKING, Protocol

from ottla.broker.security.audit.security_log import decisions
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import (
    CLUSTER_NAME,
    OPERATION_NAMES,
    RESOURCE_NAMES,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
)
from ottla.broker.security.authorization.decision_cache import DecisionCache
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import Principal, RequestContext
    from ottla.broker.security.audit.security_log import SecurityLog


class Client(Protocol):
    """A connection, of which no request was read yet."""

    @property
    def principal(self) -> Principal: ...

    @property
    def client_host(self) -> str: ...


class Authorizer:
    """Decides for one broker; synchronous, from memory. Keeps decisions until an ACL changes."""

    def __init__(
        self,
        rules: AclRules,
        log: SecurityLog,
        super_users: frozenset[str] = frozenset(),
        *,
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        """`super_users` as "User:alice": they may do everything, whatever the ACLs."""
        self.rules = rules
        self._log = log
        self._logs_allowed = decisions.isEnabledFor
        self._super_users = super_users
        self._without_acls = allow_everyone_if_no_acl_found
        self._decisions = DecisionCache()
        self._version = rules.version  # of the rules that `_decisions` are from

    def allows(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        """Whether the request's sender may do this. Denials are logged, unless the caller only
        wants to know (a filter over everything there is)."""
        # As `_allows`, which would be a call for each topic of each request.
        connection = context.connection
        decision = (connection.principal, connection.client_host, operation, resource_type, name)
        is_allowed = self._decisions.get(decision) if self.rules.version == self._version else None
        if is_allowed is None:
            is_allowed = self._allows(connection, operation, resource_type, name)
        if log_if_denied and (not is_allowed or self._logs_allowed(DEBUG)):
            resource = f"{RESOURCE_NAMES[resource_type]}:{name}"
            self._write(context, operation, resource, is_allowed)
        return is_allowed

    def denied_more(self, context: RequestContext, denials: int) -> None:
        """Log the number of denials that were not logged each."""
        self._log.denied_more(context, denials)

    def allows_on_cluster(
        self, context: RequestContext, operation: Operation, *, log_if_denied: bool = True
    ) -> bool:
        return self.allows(
            context, operation, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=log_if_denied
        )

    def allows_any(
        self, context: RequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is any resource of the type on which the sender may do this."""
        is_allowed = self._allows(context.connection, operation, resource_type, None)
        if not is_allowed or self._logs_allowed(DEBUG):
            self._write(context, operation, f"any {RESOURCE_NAMES[resource_type]}", is_allowed)
        return is_allowed

    def may_send(self, connection: Client, api_key: int) -> bool:
        """Whether the client of a connection could be allowed to produce, or to send the requests
        of a controller. Known before its request is read; nothing is logged."""
        if api_key == ApiKey.PRODUCE:
            return self._allows(connection, Operation.WRITE, ResourceType.TOPIC, None)
        return self._allows(
            connection, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def operations(self, context: RequestContext, resource_type: ResourceType, name: str) -> int:
        """What the sender may do there, as the bits of "authorized operations" (KIP-430)."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self._allows(context.connection, operation, resource_type, name)
        )

    def _allows(
        self,
        connection: Client,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None,
    ) -> bool:
        """The decision that is kept, or a new one; `name` is None for any resource of the type."""
        kept, version = self._decisions, self.rules.version
        if version != self._version:
            kept.clear()
            self._version = version
        decision = (connection.principal, connection.client_host, operation, resource_type, name)
        is_allowed = kept.get(decision)
        if is_allowed is None:
            is_allowed = self._decide(*decision)
            kept.put(decision, is_allowed)
        return is_allowed

    def _decide(
        self,
        who: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None,
    ) -> bool:
        principal = str(who)
        if principal in self._super_users:
            return True
        without_acls = self._without_acls
        if name is None:
            return self.rules.allows_any(
                principal, host, operation, resource_type, without_acls=without_acls
            )
        return self.rules.allows(
            principal, host, operation, resource_type, name, without_acls=without_acls
        )

    def _write(
        self, context: RequestContext, operation: Operation, resource: str, is_allowed: bool
    ) -> None:
        write = self._log.allowed if is_allowed else self._log.denied
        write(context, OPERATION_NAMES[operation], resource)
