"""Who may do what: ACLs, super users, and a log line for everything that is denied (KIP-11, 290).

Mirrors `kafka.security.authorizer.AclAuthorizer`, whose ACLs it shares through the znode tree.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import (
    CLUSTER_NAME,
    OPERATION_NAMES,
    RESOURCE_NAMES,
    SUPPORTED_OPERATIONS,
    Operation,
    ResourceType,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import Principal, RequestContext

# Kafka's name, by which people find and filter these lines.
logger = logging.getLogger("kafka.authorizer.logger")


class Client(Protocol):
    """A connection, of which no request was read yet."""

    @property
    def principal(self) -> Principal: ...

    @property
    def client_host(self) -> str: ...


class Authorizer:
    """Decides for one broker; synchronous, from memory."""

    def __init__(
        self,
        rules: AclRules,
        super_users: frozenset[str] = frozenset(),
        *,
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        """`super_users` as "User:alice": they may do everything, whatever the ACLs."""
        self.rules = rules
        self._super_users = super_users
        self._without_acls = allow_everyone_if_no_acl_found

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
        principal = str(context.principal)
        if principal in self._super_users:
            return True
        is_allowed = self.rules.allows(
            principal,
            context.client_host,
            operation,
            resource_type,
            name,
            without_acls=self._without_acls,
        )
        if not is_allowed and log_if_denied:
            self._log_denial(
                context, principal, operation, f"{RESOURCE_NAMES[resource_type]}:{name}"
            )
        return is_allowed

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
        principal = str(context.principal)
        if principal in self._super_users:
            return True
        is_allowed = self.rules.allows_any(
            principal,
            context.client_host,
            operation,
            resource_type,
            without_acls=self._without_acls,
        )
        if not is_allowed:
            self._log_denial(context, principal, operation, f"any {RESOURCE_NAMES[resource_type]}")
        return is_allowed

    def may_send(self, connection: Client, api_key: int) -> bool:
        """Whether the client of a connection could be allowed to produce, or to send the requests
        of a controller. Known before its request is read; nothing is logged."""
        principal = str(connection.principal)
        if principal in self._super_users:
            return True
        if api_key == ApiKey.PRODUCE:
            return self.rules.allows_any(
                principal,
                connection.client_host,
                Operation.WRITE,
                ResourceType.TOPIC,
                without_acls=self._without_acls,
            )
        return self.rules.allows(
            principal,
            connection.client_host,
            Operation.CLUSTER_ACTION,
            ResourceType.CLUSTER,
            CLUSTER_NAME,
            without_acls=self._without_acls,
        )

    def operations(self, context: RequestContext, resource_type: ResourceType, name: str) -> int:
        """What the sender may do there, as the bits of "authorized operations" (KIP-430)."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.allows(context, operation, resource_type, name, log_if_denied=False)
        )

    def _log_denial(
        self, context: RequestContext, principal: str, operation: Operation, resource: str
    ) -> None:
        logger.info(
            "Principal = %s is Denied Operation = %s from host = %s on resource = %s "
            "for request = %s",
            principal,
            OPERATION_NAMES[operation],
            context.client_host,
            resource,
            context.route.entry.name,
        )
