"""Says in words, in the log and in a group's history, why a member's request was refused.

A client in a loop must not fill the log: the same refusal is told once a minute, and there is a
limit for all of them together; what was left out is counted in the next line.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.groups.events import GroupEvent, GroupEvents
from protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from broker.request_channel import RequestContext

logger = logging.getLogger("ottla.groups")

MAX_REMEMBERED = 1_000  # refusals told lately; 200 kB
SAME_AGAIN_MS = 60_000
MAX_LINES = 50  # in each span of time
SPAN_MS = 10_000
MAX_NAME = 200  # characters of an id shown; a client may send 32 kB

# What a client does about these is part of the protocol: nothing went wrong.
_ORDINARY = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
)
_FENCED = frozenset(
    (
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    )
)
_WORDS: dict[int, str] = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member: it left, was taken out, or never "
    "joined",
    ErrorCode.ILLEGAL_GENERATION: "its generation is over: the group went on without it",
    ErrorCode.FENCED_INSTANCE_ID: "another member has its group.instance.id now",
    ErrorCode.INVALID_GROUP_ID: "the group id is empty",
    ErrorCode.INVALID_SESSION_TIMEOUT: "its session timeout is outside of what this broker allows",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the members have no protocol in common with it",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size allows",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata of the commit is longer than "
    "offset.metadata.max.bytes",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it commits for a partition that does not exist",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has its transactional id",
    ErrorCode.INVALID_TXN_STATE: "the producer has no such transaction open",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id belongs to another producer",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
}


class GroupRefusals:
    """Told by the handlers of every answer that is an error. Loop only."""

    def __init__(self, events: GroupEvents, now_ms: Callable[[], int]) -> None:
        self._events = events
        self._now_ms = now_ms
        self._told: OrderedDict[tuple[str, str, str, int], int] = OrderedDict()
        self._span_began_ms = 0
        self._lines = 0
        self._left_out = 0

    def tell(
        self,
        context: RequestContext,
        request: str,
        group_id: str | None,
        member_id: str,
        generation_id: int,
        error_code: int,
    ) -> None:
        """`request` is Kafka's name of the API; nothing happens for codes that are no refusal."""
        if error_code in _ORDINARY:
            return
        now_ms = self._now_ms()
        # Commits come from clients that have no member id, too.
        what = (group_id or "", member_id, request, error_code)
        last_ms = self._told.get(what)
        if last_ms is not None and now_ms - last_ms < SAME_AGAIN_MS:
            return
        self._told[what] = now_ms
        self._told.move_to_end(what)
        if len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        words = _WORDS.get(error_code, "see the error code")
        name = error_name(error_code)
        client_id, host = context.header.client_id or "", f"/{context.client_host}"
        self._log(
            now_ms,
            f"group {_short(group_id or '')!r}: {request} of member {_short(member_id)!r} "
            f"(client {_short(client_id)!r} at {host}) refused with {name}: {words}",
        )
        kind = "fenced" if error_code in _FENCED else "refused"
        reason = f"{request} refused with {name}: {words}"
        self._events.add_to_known(
            group_id or "",
            GroupEvent(
                *(now_ms, kind, generation_id, _short(member_id), _short(client_id), host, reason)
            ),
        )

    def _log(self, now_ms: int, line: str) -> None:
        if now_ms - self._span_began_ms >= SPAN_MS:
            if self._left_out:
                logger.info("%d refusals of group requests were not logged", self._left_out)
            self._span_began_ms, self._lines, self._left_out = now_ms, 0, 0
        if self._lines >= MAX_LINES:
            self._left_out += 1
            return
        self._lines += 1
        logger.info("%s", line)


def _short(text: str) -> str:
    return text if len(text) <= MAX_NAME else text[:MAX_NAME] + "..."
