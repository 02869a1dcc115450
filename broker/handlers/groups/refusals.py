"""Says in words, in the log and in a group's history, why a member's request was refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.handlers.refusal_log import RefusalLog, shortened
from ottla.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from ottla.broker.requests.request_channel import RequestContext

logger = logging.getLogger("ottla.groups")

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
    ErrorCode.FENCED_MEMBER_EPOCH: "its member epoch is not the one that the group knows",
    ErrorCode.STALE_MEMBER_EPOCH: "its member epoch is over: it has to learn its new one first",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has its group.instance.id",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "it asks for an assignor that this broker does not have",
    ErrorCode.INVALID_REQUEST: "the request contradicts itself",
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
        self._log = RefusalLog(logger, now_ms)

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
        if not self._log.is_new((group_id, member_id, request, error_code)):
            return
        words = _WORDS.get(error_code, "see the error code")
        name = error_name(error_code)
        client_id, host = context.header.client_id or "", f"/{context.client_host}"
        self._log.write(
            f"group {shortened(group_id or '')!r}: {request} of member {shortened(member_id)!r} "
            f"(client {shortened(client_id)!r} at {host}) refused with {name}: {words}",
        )
        kind = "fenced" if error_code in _FENCED else "refused"
        reason = f"{request} refused with {name}: {words}"
        names = (shortened(member_id), shortened(client_id), host)
        event = GroupEvent(self._now_ms(), kind, generation_id, *names, reason)
        self._events.add_to_known(group_id or "", event)
