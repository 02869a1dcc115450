"""ACLs decided by a plain scan of all of them, to compare the indexes with.

Written from Kafka's rules, but that a denial of an operation that is not known is one of all, and
not of none: a denial wins; READ, WRITE, DELETE and ALTER include DESCRIBE, and
ALTER_CONFIGS includes DESCRIBE_CONFIGS; a literal "*" stands for all names.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.security.authorization.acl_types import (
    OPERATION_NAMES,
    RESOURCE_NAMES,
    Operation,
    ResourceType,
)
from ottla.controller.tree.znodes_security import LITERAL, Acl, AclResource

INCLUDED_IN = {
    "Describe": {"Describe", "Read", "Write", "Delete", "Alter"},
    "DescribeConfigs": {"DescribeConfigs", "AlterConfigs"},
}


KNOWN = frozenset(OPERATION_NAMES.values())


class ReferenceRules:
    """The ACLs as a list of pairs."""

    def __init__(self) -> None:
        self.acls: list[tuple[AclResource, Acl]] = []

    def replace(self, resource: AclResource, acls: Iterable[Acl]) -> None:
        self.acls = [pair for pair in self.acls if pair[0] != resource]
        self.acls.extend((resource, acl) for acl in acls)

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        without_acls: bool,
    ) -> bool:
        matching = [
            acl
            for resource, acl in self.acls
            if resource.resource_type == RESOURCE_NAMES[resource_type]
            and _stands_for(resource, name)
        ]
        if not matching:
            return without_acls
        wanted = OPERATION_NAMES[operation]
        mine = [acl for acl in matching if _is_for(acl, principal, host)]
        if any(acl.permission_type == "Deny" and _denies(acl, wanted) for acl in mine):
            return False
        including = {*INCLUDED_IN.get(wanted, {wanted}), "All"}
        return any(acl.permission_type == "Allow" and acl.operation in including for acl in mine)

    def allows_any(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        *,
        without_acls: bool,
    ) -> bool:
        wanted = OPERATION_NAMES[operation]
        mine = [
            (resource, acl.permission_type)
            for resource, acl in self.acls
            if resource.resource_type == RESOURCE_NAMES[resource_type]
            and _is_for(acl, principal, host)
            and (
                _denies(acl, wanted)
                if acl.permission_type == "Deny"
                else acl.operation in (wanted, "All")
            )
        ]
        denied = [resource for resource, permission in mine if permission == "Deny"]
        allowed = [resource for resource, permission in mine if permission == "Allow"]
        if any(each.pattern_type == LITERAL and each.name == "*" for each in denied):
            return False
        if without_acls:
            return True
        return any(not any(_covers(wide, narrow) for wide in denied) for narrow in allowed)


def _is_for(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def _denies(acl: Acl, wanted: str) -> bool:
    return acl.operation in (wanted, "All") or acl.operation not in KNOWN


def _stands_for(resource: AclResource, name: str) -> bool:
    if resource.pattern_type == LITERAL:
        return resource.name in (name, "*")
    return name.startswith(resource.name)


def _covers(denied: AclResource, allowed: AclResource) -> bool:
    """Whether the denial leaves nothing of the permission."""
    if allowed.pattern_type == LITERAL and allowed.name == "*":
        return False
    if denied.pattern_type == LITERAL:
        return denied == allowed
    return allowed.name.startswith(denied.name)
