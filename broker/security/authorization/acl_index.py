"""Indexes over the ACLs of one resource type. Pure.

A check looks up the literal name, "*", and one prefix for each length that prefixed ACLs have, and
in each resource found four subjects; so its cost does not grow with the number of ACLs. What one
resource's ACLs say to one subject is two sets of operations, kept as bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.broker.security.authorization.acl_types import (
    IMPLIED_BY,
    OPERATIONS,
    PERMISSION_NAMES,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Operation,
    Permission,
)
from ottla.controller.tree.znodes_security import PREFIXED, Acl, AclResource

_ALLOW = PERMISSION_NAMES[Permission.ALLOW]
_DENY = PERMISSION_NAMES[Permission.DENY]

# Whom an ACL is for: principal and host.
Subject = tuple[str, str]


class Rights(NamedTuple):
    """What the ACLs of one resource say to one subject, as bits by operation."""

    denied: int = 0
    allowed: int = 0


NO_RIGHTS = Rights()

# An ACL for one of these operations denies, or allows, the operation.
DENYING = {operation: 1 << operation | 1 << Operation.ALL for operation in Operation}
ALLOWING = {
    operation: sum(1 << each for each in {*IMPLIED_BY.get(operation, (operation,)), Operation.ALL})
    for operation in Operation
}


def rights_of(acls: Iterable[Acl]) -> dict[Subject, Rights]:
    """The ACLs of one resource by subject. An operation of a later version allows nothing, and its
    denial denies all operations, of which it may be a part."""
    found: dict[Subject, Rights] = {}
    for acl in acls:
        is_known = acl.operation in OPERATIONS
        bit = 1 << OPERATIONS[acl.operation] if is_known else 0
        subject = (acl.principal, acl.host)
        denied, allowed = found.get(subject, NO_RIGHTS)
        if acl.permission_type == _DENY:
            found[subject] = Rights(denied | (bit if is_known else 1 << Operation.ALL), allowed)
        elif acl.permission_type == _ALLOW:
            found[subject] = Rights(denied, allowed | bit)
    return found


def subjects(principal: str, host: str) -> tuple[Subject, ...]:
    """The subjects of ACLs that are for this principal at this host."""
    return (
        (principal, host),
        (principal, WILDCARD),
        (WILDCARD_PRINCIPAL, host),
        (WILDCARD_PRINCIPAL, WILDCARD),
    )


class TypeIndex:
    """The ACLs of one resource type: by literal name, by prefix and by subject."""

    def __init__(self) -> None:
        self._literals: dict[str, dict[Subject, Rights]] = {}
        self._prefixes: dict[str, dict[Subject, Rights]] = {}
        # Distinct lengths of prefixes, in order, and how many prefixes have each.
        self._lengths: list[int] = []
        self._length_counts: dict[int, int] = {}
        self._by_subject: dict[Subject, dict[AclResource, Rights]] = {}

    def replace(self, resource: AclResource, acls: frozenset[Acl]) -> None:
        """Make these the ACLs of a resource; none removes it."""
        is_prefix = resource.pattern_type == PREFIXED
        names = self._prefixes if is_prefix else self._literals
        after = rights_of(acls)
        before = names.pop(resource.name, None)
        if acls:
            names[resource.name] = after
        if is_prefix and bool(acls) != (before is not None):
            self._count_length(len(resource.name), 1 if acls else -1)
        for subject in (before or {}).keys() - after.keys():
            resources = self._by_subject[subject]
            del resources[resource]
            if not resources:
                del self._by_subject[subject]
        for subject, rights in after.items():
            self._by_subject.setdefault(subject, {})[resource] = rights

    def _count_length(self, length: int, change: int) -> None:
        count = self._length_counts.pop(length, 0) + change
        if count:
            self._length_counts[length] = count
        if len(self._length_counts) != len(self._lengths):
            self._lengths = sorted(self._length_counts)

    def matching(self, name: str) -> list[dict[Subject, Rights]]:
        """The rights of each resource with ACLs that stands for `name`."""
        found = []
        literals, prefixes = self._literals, self._prefixes
        for exact in (name, WILDCARD):
            rights = literals.get(exact)
            if rights is not None:
                found.append(rights)
        size = len(name)
        for length in self._lengths:
            if length > size:
                break
            rights = prefixes.get(name[:length])
            if rights is not None:
                found.append(rights)
        return found

    def of_subjects(self, wanted: Iterable[Subject]) -> Iterator[tuple[AclResource, Rights]]:
        """The resources of which an ACL is for one of the subjects, with its rights."""
        for subject in wanted:
            yield from self._by_subject.get(subject, {}).items()
