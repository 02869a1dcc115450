"""All ACLs of a cluster in memory, and whether they allow something. Pure.

Mirrors Kafka's `AclAuthorizer`: a denial that matches wins over every permission; the permission
to read, write, delete or alter includes the one to describe; a literal name "*" stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.broker.security.authorization.acl_index import (
    ALLOWING,
    DENYING,
    TypeIndex,
    subjects,
)
from ottla.broker.security.authorization.acl_types import (
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
from ottla.protocol.steps import Steps


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


_DENY_ALL = frozenset(
    (
        Acl(
            WILDCARD_PRINCIPAL,
            PERMISSION_NAMES[Permission.DENY],
            OPERATION_NAMES[Operation.ALL],
            WILDCARD,
        ),
    )
)


class AclRules:
    """The ACLs by resource. Every topic of every request is looked up, so there are indexes.

    A check costs the distinct lengths of the prefixes of its resource type, however many ACLs
    there are. `version` changes with each change, so that kept decisions can be dropped.
    """

    def __init__(self) -> None:
        self.version = 0
        self._acls: dict[AclResource, frozenset[Acl]] = {}
        self._unknown: set[AclResource] = set()
        self._indexes: dict[str, TypeIndex] = {}

    def replace(self, resource: AclResource, acls: Iterable[Acl]) -> None:
        """Make these the ACLs of a resource; an empty list removes the resource."""
        found = frozenset(acls)
        before = self._acls.get(resource, frozenset())
        if found == before and resource not in self._unknown:
            return
        self._unknown.discard(resource)
        if found:
            self._acls[resource] = found
        else:
            self._acls.pop(resource, None)
        self._index(resource, found)

    def deny(self, resource: AclResource) -> None:
        """Nothing is allowed on a resource, or on what a pattern stands for: its ACLs are not
        known. Until `replace`; super users are not concerned."""
        if resource not in self._unknown:
            self._unknown.add(resource)
            self._acls.pop(resource, None)
            self._index(resource, _DENY_ALL)

    def _index(self, resource: AclResource, found: frozenset[Acl]) -> None:
        self.version += 1
        index = self._indexes.get(resource.resource_type)
        if index is None:
            index = self._indexes[resource.resource_type] = TypeIndex()
        index.replace(resource, found)

    def resources(self) -> list[AclResource]:
        """Those that have ACLs, or whose ACLs are not known."""
        return [*self._acls, *self._unknown]

    def of(self, resource: AclResource) -> frozenset[Acl]:
        return self._acls.get(resource, frozenset())

    def find(self, wanted: AclFilter) -> Steps[list[tuple[AclResource, list[Acl]]]]:
        """Resources with those of their ACLs that the filter means; none without any."""
        found: list[tuple[AclResource, list[Acl]]] = []
        for resource in self._candidates(wanted):
            acls = self.of(resource)
            if acls and wanted.matches_resource(resource):
                matching = [acl for acl in acls if wanted.matches(acl)]
                if matching:
                    found.append((resource, matching))
            yield
        return found

    def _candidates(self, wanted: AclFilter) -> list[AclResource]:
        """What may match; few where the filter has a name and no patterns match it."""
        name = wanted.resource_name
        if name is None or wanted.pattern_type == PatternType.MATCH:
            return self.resources()
        return [
            AclResource(pattern_type, kind, name)
            for pattern_type in (LITERAL, PREFIXED)
            for kind in RESOURCES
        ]

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
        index = self._indexes.get(RESOURCE_NAMES[resource_type])
        resources = index.matching(name) if index is not None else ()
        if not resources:
            return without_acls
        denied = allowed = 0
        wanted = subjects(principal, host)
        for rights in resources:
            for subject in wanted:
                found = rights.get(subject)
                if found is not None:
                    denied |= found.denied
                    allowed |= found.allowed
        return not denied & DENYING[operation] and bool(allowed & ALLOWING[operation])

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
        index = self._indexes.get(RESOURCE_NAMES[resource_type])
        if index is None:
            return without_acls
        operations = DENYING[operation]
        allowed: list[AclResource] = []
        denied: set[tuple[str, str]] = set()
        for resource, rights in index.of_subjects(subjects(principal, host)):
            if rights.denied & operations:
                denied.add((resource.pattern_type, resource.name))
            if rights.allowed & operations:
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
