"""Quotas that a class of the installation computes (KIP-257): `client.quota.callback.class`.

It is for Ottla what a Java class with Kafka's ClientQuotaCallback is for Kafka, and is asked at the
same points. A client is known by the tags that the class gives it: clients with the same tags share
a quota. `ottla.quotas` has the public names.

A method that raises is logged, once for each method, and what it was to return has no limit: a
client gets its response, which may be that of a request that was done already.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.broker.quotas.client_quotas import MAX_REMEMBERED, Entity, QuotaTable

logger = logging.getLogger("ottla.quotas")


class QuotaEntity(NamedTuple):
    """Whom a quota was set for: a user, a client id, or both.

    "<default>" is the default of all users or client ids, None is not named.
    """

    user: str | None
    client_id: str | None


class ClusterMetadata(NamedTuple):
    """The cluster as this broker knows it; valid during the call.

    `leaders` are broker ids by topic and partition, -1 for a partition without a leader. A topic is
    read from the metadata when it is requested.
    """

    broker_id: int
    leaders: Mapping[str, Mapping[int, int]]


class QuotaCallback:
    """Calls the class. Loop only: a request waits for it, and so do others."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._failed: set[str] = set()  # names of its methods
        self._has_reset = hasattr(own, "quota_reset_required")

    def tags(self, kind: str, user: str, client_id: str) -> dict[str, str] | None:
        """The tags of a client; None when the class failed."""
        try:
            return {
                str(name): str(value)
                for name, value in self._own.quota_metric_tags(kind, user, client_id).items()
            }
        except Exception:
            self._note("quota_metric_tags")
            return None

    def limit(self, kind: str, tags: Mapping[str, str]) -> float | None:
        """The limit of the clients with these tags; None: no limit."""
        try:
            limit = self._own.quota_limit(kind, tags)
            if limit is None:
                return None
            number = float(limit)
            if math.isnan(number) or number <= 0:
                raise ValueError(f"a limit of {limit!r} for {tags}")
        except Exception:
            self._note("quota_limit")
            return None
        return None if math.isinf(number) else number

    def reset_required(self, kind: str) -> bool:
        """Whether limits that were requested before are to be forgotten."""
        return self._has_reset and bool(self._call("quota_reset_required", kind))

    def set(self, kind: str, entity: QuotaEntity, limit: float | None) -> None:
        """A quota was set or (None) is not there, or not any more."""
        if limit is None:
            self._call("remove_quota", kind, entity)
        else:
            self._call("update_quota", kind, entity, limit)

    def cluster_changed(self, cluster: ClusterMetadata) -> bool:
        """Shows a change of the cluster; whether limits changed by it."""
        return bool(self._call("update_cluster_metadata", cluster))

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        """Shows the settings of the broker after a change at run time."""
        self._call("reconfigure", settings)

    def close(self) -> None:
        """The broker stops."""
        self._call("close")

    def _call(self, name: str, *arguments: object) -> object:
        method = getattr(self._own, name, None)
        if method is None:
            return None
        try:
            return method(*arguments)
        except Exception:
            self._note(name)
            return None

    def _note(self, name: str) -> None:
        if name not in self._failed:
            self._failed.add(name)
            logger.exception("%s of client.quota.callback.class failed", name)


class CallbackTable(QuotaTable):
    """The limits that the class has for one kind of quota."""

    __slots__ = ("_by_tags", "_callback", "_kind")

    def __init__(self, callback: QuotaCallback, kind: str) -> None:
        super().__init__()
        self.has_limits = True  # only the class knows
        self._callback = callback
        self._kind = kind
        # Bounded by MAX_REMEMBERED.
        self._by_tags: dict[Entity, float | None] = {}

    def set(self, user: str, client_id: str, limit: float | None) -> None:
        """Hand a quota on to the class."""
        self._callback.set(self._kind, QuotaEntity(user or None, client_id or None), limit)
        self.forget()

    def forget(self) -> None:
        """Ask for all limits again."""
        self._by_tags.clear()

    def find(self, user: str, client_id: str) -> tuple[float, Entity] | None:
        """The limit that counts for a client, and the tags for which it is counted, as (name,
        value, name, value, ...); None: no limit."""
        return self._find(user, client_id, again=False)

    def find_again(self, user: str, client_id: str) -> tuple[float, Entity] | None:
        """As `find`; the limit is requested from the class, as in Kafka."""
        return self._find(user, client_id, again=True)

    def _find(self, user: str, client_id: str, *, again: bool) -> tuple[float, Entity] | None:
        tags = self._callback.tags(self._kind, user, client_id)
        if tags is None:
            return None
        if self._callback.reset_required(self._kind):
            self.forget()
        key = tuple(part for item in sorted(tags.items()) for part in item)
        if again or key not in self._by_tags:
            if len(self._by_tags) >= MAX_REMEMBERED:
                self._by_tags.clear()
            self._by_tags[key] = self._callback.limit(self._kind, tags)
        limit = self._by_tags[key]
        return None if limit is None else (limit, key)
