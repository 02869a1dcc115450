"""Throttle times by client, which Kafka has as Java metrics and its tests read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.quotas import client_quotas
from ottla.broker.quotas.client_quotas import ClientQuota, ClientQuotas, Entity
from ottla.broker.quotas.quota_callback import CallbackTable

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext

_KINDS = ("produce", "fetch", "request")


class ThrottleTimes:
    """The throttle times that brokers of this process gave to the clients that have a quota."""

    def __init__(self) -> None:
        # By kind, and by the tags that the metric has in Kafka.
        self._times: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = {}
        # Of the last produce or fetch of a client, until its response is complete.
        self._by_bytes: dict[tuple[str, str], int] = {}
        self._kinds: dict[int, str] = {}
        # What a class that computes quotas found for the request: asked once, as in Kafka.
        self._found: tuple[float, Entity] | None = None
        #: Spent on fetches of followers.
        self.exempt_seconds = 0.0

    def install(self) -> None:
        """All quotas are watched from now on."""
        record, throttle_request = ClientQuota.record, ClientQuotas.throttle_request
        build, find = ClientQuotas.__init__, CallbackTable._find

        def build_watched(quotas: ClientQuotas, **settings: object) -> None:
            build(quotas, **settings)  # type: ignore[arg-type]
            self._kinds = {id(getattr(quotas, kind)): kind for kind in _KINDS}

        def find_watched(
            table: CallbackTable, user: str, client_id: str, *, again: bool
        ) -> tuple[float, Entity] | None:
            self._found = find(table, user, client_id, again=again)
            return self._found

        def record_watched(
            quota: ClientQuota, user: str, client_id: str, value: float, now_ms: int
        ) -> int:
            self._found = None
            throttle_ms = record(quota, user, client_id, value, now_ms)
            kind = self._kinds.get(id(quota))
            if kind in ("produce", "fetch"):
                self._by_bytes[user, client_id] = throttle_ms
                self._add(kind, quota, user, client_id, throttle_ms)
            return throttle_ms

        def throttle_watched(quotas: ClientQuotas, context: RequestContext) -> int:
            if client_quotas._is_of_follower(context.request):
                self.exempt_seconds += context.local_done_at - context.dequeued_at
            self._found = None
            throttle_ms = throttle_request(quotas, context)
            user, client_id = context.principal.name, context.header.client_id or ""
            # Kafka throttles for the longer of both times, and counts only that.
            counted = throttle_ms > self._by_bytes.pop((user, client_id), 0)
            self._add("request", quotas.request, user, client_id, throttle_ms if counted else 0)
            return throttle_ms

        CallbackTable._find = find_watched  # type: ignore[method-assign]
        ClientQuotas.__init__ = build_watched  # type: ignore[method-assign, assignment]
        ClientQuota.record = record_watched  # type: ignore[method-assign]
        ClientQuotas.throttle_request = throttle_watched  # type: ignore[method-assign]

    def _add(
        self, kind: str, quota: ClientQuota, user: str, client_id: str, throttle_ms: int
    ) -> None:
        if isinstance(quota.table, CallbackTable):
            found = self._found
        else:
            found = quota.table.find(user, client_id) if quota.table.has_limits else None
        if found is not None:
            times = self._times.setdefault((kind, _tags(quota, found[1])), [])
            if throttle_ms:
                times.append(throttle_ms)

    def averages(self) -> list[tuple[str, dict[str, str], float | None]]:
        """Kind, tags and average throttle time; None for a client that had none."""
        return [
            (kind, dict(tags), sum(times) / len(times) if times else None)
            for (kind, tags), times in self._times.items()
        ]

    def remove(self, kind: str, suffix: str) -> None:
        """Forgets the throttle times of the clients whose tags have these values."""
        for key in [key for key in self._times if key[0] == kind]:
            if ":".join(value for _, value in key[1]) == suffix:
                del self._times[key]

    def longest(self) -> dict[str, int]:
        """The longest throttle time of each kind."""
        return {
            f"longest-{kind}-throttle": max(
                (ms for key, times in self._times.items() if key[0] == kind for ms in times),
                default=0,
            )
            for kind in _KINDS
        }


def _tags(quota: ClientQuota, entity: Entity) -> tuple[tuple[str, str], ...]:
    if isinstance(quota.table, CallbackTable):
        return tuple(zip(entity[::2], entity[1::2], strict=True))
    return tuple(zip(("user", "client-id"), entity, strict=True))
