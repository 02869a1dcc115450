"""What a request that makes or deletes partitions pays of its client's quota (KIP-599).

Mirrors Kafka's `ControllerMutationQuota`, the strict and the permissive one.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.quotas.client_quotas import MutationQuota
    from ottla.broker.requests.request_channel import RequestContext

# What the quota answers where waiting does not help: nothing is allowed a second.
_FOR_EVER_MS = 2**31 - 1


class MutationCharge:
    """For one request; call it before each topic that changes, `throttle` before the answer."""

    __slots__ = ("_context", "_is_strict", "_quota", "_until_ms")

    def __init__(self, quota: MutationQuota, context: RequestContext, strict_since: int) -> None:
        """`strict_since`: the first version of the API that knows THROTTLING_QUOTA_EXCEEDED."""
        self._quota = quota
        self._context = context
        self._is_strict = context.header.api_version >= strict_since
        self._until_ms = 0

    def __call__(self, partitions: int) -> None:
        """Count partitions. A strict one raises THROTTLING_QUOTA_EXCEEDED, and counts nothing,
        while earlier ones are not paid for; what exceeds the quota itself is still allowed."""
        context, quota = self._context, self._quota
        user, client_id = context.principal.name, context.header.client_id or ""
        now_ms = _now_ms()
        if not self._is_strict:
            self._wait(quota.record(user, client_id, partitions, now_ms), now_ms)
            return
        wait_ms = quota.check(user, client_id, now_ms)
        if wait_ms:
            self._wait(wait_ms, now_ms)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)  # Kafka has no words either
        quota.record(user, client_id, partitions, now_ms)

    def throttle(self) -> None:
        """Make the client wait for what is left of its throttle time: some of it may have passed
        while the request was carried out."""
        left_ms = self._until_ms - _now_ms()
        if left_ms > 0:
            self._context.throttle_time_ms = max(self._context.throttle_time_ms, left_ms)

    def _wait(self, wait_ms: int, now_ms: int) -> None:
        # As with Kafka, a client that may change nothing is refused and not silenced as well.
        if 0 < wait_ms < _FOR_EVER_MS:
            self._until_ms = now_ms + wait_ms


def _now_ms() -> int:
    return int(monotonic() * 1000)
