"""Keeps the latest decisions of the authorizer. Bounded.

Two generations: a decision that is used moves to the young one; when that is full, it becomes the
old one, and what was in the old one is forgotten. So a lookup costs one or two dictionary lookups,
and a client that requests many names pushes out no decision that others still use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import Principal
    from ottla.broker.security.authorization.acl_types import Operation, ResourceType

# Principal, host, operation, resource type, resource name; None for any resource of the type.
Decision = tuple["Principal", str, "Operation", "ResourceType", str | None]

# Decisions in a generation. With names of up to 255 characters both take 8 MB at most.
GENERATION_SIZE = 8192

# Longer names than topics have are not kept, so that the bound above is one in bytes.
LONGEST_NAME = 255


class DecisionCache:
    """Whether something is allowed, by who asked from where for what."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[Decision, bool] = {}
        self._old: dict[Decision, bool] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, decision: Decision) -> bool | None:
        """None if it is not known."""
        is_allowed = self._young.get(decision)
        if is_allowed is None:
            is_allowed = self._old.pop(decision, None)
            if is_allowed is not None:
                self.put(decision, is_allowed)
        return is_allowed

    def put(self, decision: Decision, is_allowed: bool) -> None:
        name = decision[4]
        if name is not None and len(name) > LONGEST_NAME:
            return
        if len(self._young) >= GENERATION_SIZE:
            self._old = self._young
            self._young = {}
        self._young[decision] = is_allowed

    def clear(self) -> None:
        """Forget everything: the ACLs changed."""
        self._young.clear()
        self._old.clear()
