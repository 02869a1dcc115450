"""The controller mutation quota of one request that creates or deletes partitions (KIP-599).

Mirrors Kafka's `ControllerMutationQuota`, the strict and the permissive one.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.quotas.client_quotas import MutationQuota
    from ottla.broker.requests.request_channel import RequestContext

# The wait that the quota returns when its rate is zero: no wait would be long enough.
_INFINITE_WAIT_MS = 2**31 - 1


class RequestMutationQuota:
    """Call `record` before each topic is changed, and `throttle` before the response is sent."""

    __slots__ = ("_context", "_is_strict", "_quota", "_throttled_until_ms")

    def __init__(self, quota: MutationQuota, context: RequestContext, strict_since: int) -> None:
        """`strict_since`: the first version of the API that knows THROTTLING_QUOTA_EXCEEDED."""
        self._quota = quota
        self._context = context
        self._is_strict = context.header.api_version >= strict_since
        self._throttled_until_ms = 0

    def record(self, partitions: int) -> None:
        """Counts partitions against the quota.

        A strict quota that earlier mutations have exhausted raises THROTTLING_QUOTA_EXCEEDED and
        counts nothing. A mutation that itself exceeds the quota is accepted.
        """
        context, quota = self._context, self._quota
        user, client_id = context.principal.name, context.header.client_id or ""
        now_ms = _now_ms()
        if not self._is_strict:
            self._wait(quota.record(user, client_id, partitions, now_ms), now_ms)
            return
        wait_ms = quota.check(user, client_id, now_ms)
        if wait_ms:
            self._wait(wait_ms, now_ms)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)  # Kafka sends no message either.
        quota.record(user, client_id, partitions, now_ms)

    def throttle(self) -> None:
        """Sets the throttle time of the response, less the time that the request has taken."""
        left_ms = self._throttled_until_ms - _now_ms()
        if left_ms > 0:
            self._context.throttle_time_ms = max(self._context.throttle_time_ms, left_ms)

    def _wait(self, wait_ms: int, now_ms: int) -> None:
        # As in Kafka, a client with a rate of zero gets the error and is not muted as well.
        if 0 < wait_ms < _INFINITE_WAIT_MS:
            self._throttled_until_ms = now_ms + wait_ms


def _now_ms() -> int:
    return int(monotonic() * 1000)
