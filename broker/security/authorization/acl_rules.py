"""All ACLs of a cluster in memory, and whether they allow something. Pure.

Mirrors Kafka's `AclAuthorizer`: a denial that matches wins over every permission; the permission
to read, write, delete or alter includes the one to describe; a literal name "*" stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.broker.security.authorization.acl_types import (
    IMPLIED_BY,
    OPERATION_NAMES,
    OPERATIONS,
    PERMISSION_NAMES,
    PERMISSIONS,
    RESOURCE_NAMES,
    RESOURCES,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource

ALLOW = PERMISSION_NAMES[Permission.ALLOW]
DENY = PERMISSION_NAMES[Permission.DENY]
ALL = OPERATION_NAMES[Operation.ALL]


class AclFilter(NamedTuple):
    """Which ACLs are meant; None and ANY mean whatever there is (`AclBindingFilter`)."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def is_unknown(self) -> bool:
        """Whether a part of it comes from a later version."""
        return (
            self.resource_type not in RESOURCE_NAMES.keys() - {ResourceType.UNKNOWN}
            or self.pattern_type not in set(PatternType) - {PatternType.UNKNOWN}
            or self.operation not in OPERATION_NAMES.keys() - {Operation.UNKNOWN}
            or self.permission not in PERMISSION_NAMES.keys() - {Permission.UNKNOWN}
        )

    def matches_resource(self, resource: AclResource) -> bool:
        if self.resource_type not in (ResourceType.ANY, RESOURCES.get(resource.resource_type)):
            return False
        is_literal = resource.pattern_type == LITERAL
        own = PatternType.LITERAL if is_literal else PatternType.PREFIXED
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, own):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == resource.name
        if is_literal:
            return resource.name in (self.resource_name, WILDCARD)
        return self.resource_name.startswith(resource.name)

    def matches(self, acl: Acl) -> bool:
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, OPERATIONS.get(acl.operation))
            and self.permission in (Permission.ANY, PERMISSIONS.get(acl.permission_type))
        )


class AclRules:
    """The ACLs by resource. Read for every topic of every request, so look-ups come first."""

    def __init__(self) -> None:
        self._acls: dict[AclResource, frozenset[Acl]] = {}
        # Prefixed resources by type: names, longest prefixes are not preferred, all count.
        self._prefixes: dict[str, set[str]] = {}

    def replace(self, resource: AclResource, acls: Iterable[Acl]) -> None:
        """What is attached to a resource from now on; nothing removes it."""
        found = frozenset(acls)
        if found:
            self._acls[resource] = found
        else:
            self._acls.pop(resource, None)
        if resource.pattern_type == PREFIXED:
            names = self._prefixes.setdefault(resource.resource_type, set())
            if found:
                names.add(resource.name)
            else:
                names.discard(resource.name)

    def of(self, resource: AclResource) -> frozenset[Acl]:
        return self._acls.get(resource, frozenset())

    def find(self, wanted: AclFilter) -> Iterator[tuple[AclResource, list[Acl]]]:
        """Resources with those of their ACLs that the filter means; none without any."""
        for resource, acls in self._acls.items():
            if wanted.matches_resource(resource):
                found = [acl for acl in acls if wanted.matches(acl)]
                if found:
                    yield resource, found

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
        """Whether it is allowed; `without_acls` decides for a resource that has none."""
        acls = self._matching(RESOURCE_NAMES[resource_type], name)
        if not acls:
            return without_acls
        mine = [
            acl
            for acl in acls
            if acl.principal in (principal, WILDCARD_PRINCIPAL) and acl.host in (host, WILDCARD)
        ]
        denied = (OPERATION_NAMES[operation], ALL)
        if any(acl.permission_type == DENY and acl.operation in denied for acl in mine):
            return False
        allowed = {OPERATION_NAMES[each] for each in IMPLIED_BY.get(operation, (operation,))}
        allowed.add(ALL)
        return any(acl.permission_type == ALLOW and acl.operation in allowed for acl in mine)

    def _matching(self, resource_type: str, name: str) -> list[Acl]:
        found: list[Acl] = []
        for exact in (name, WILDCARD):
            found.extend(self._acls.get(AclResource(LITERAL, resource_type, exact), ()))
        for prefix in self._prefixes.get(resource_type, ()):
            if name.startswith(prefix):
                found.extend(self._acls[AclResource(PREFIXED, resource_type, prefix)])
        return found

    def allows_any(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        *,
        without_acls: bool,
    ) -> bool:
        """Whether it is allowed on at least one resource of the type (`authorizeByResourceType`).

        With `without_acls` every resource that has no ACL will do, unless all are denied.
        """
        kind = RESOURCE_NAMES[resource_type]
        operations = (OPERATION_NAMES[operation], ALL)
        allowed: list[AclResource] = []
        denied: set[tuple[str, str]] = set()
        for resource, acls in self._acls.items():
            if resource.resource_type != kind:
                continue
            for acl in acls:
                if (
                    acl.principal in (principal, WILDCARD_PRINCIPAL)
                    and acl.host in (host, WILDCARD)
                    and acl.operation in operations
                ):
                    if acl.permission_type == DENY:
                        denied.add((resource.pattern_type, resource.name))
                    else:
                        allowed.append(resource)
        if (LITERAL, WILDCARD) in denied:
            return False
        if without_acls:
            return True
        return any(not _is_overruled(resource, denied) for resource in allowed)


def _is_overruled(resource: AclResource, denied: set[tuple[str, str]]) -> bool:
    """Whether a denial covers all that a permission covers."""
    name = resource.name
    if resource.pattern_type == LITERAL:
        if name == WILDCARD:
            return False
        if (LITERAL, name) in denied:
            return True
    return any((PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
