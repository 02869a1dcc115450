"""Logs why the request of a group member failed, and adds it to the group's events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.groups.events import GroupEvent, GroupEvents
from ottla.broker.handlers.common.request_error_log import RequestErrorLog, shortened
from ottla.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from ottla.broker.requests.request_channel import RequestContext

logger = logging.getLogger("ottla.groups")

# Errors that clients handle as part of the protocol; they are not logged.
_EXPECTED = frozenset(
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
_REASONS: dict[int, str] = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member: it left, was removed, or never "
    "joined",
    ErrorCode.ILLEGAL_GENERATION: "the generation is not the current one: the group rebalanced "
    "without this member",
    ErrorCode.FENCED_INSTANCE_ID: "another member has the group.instance.id now",
    ErrorCode.INVALID_GROUP_ID: "the group id is empty",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the session timeout is outside the range of "
    "group.min.session.timeout.ms and group.max.session.timeout.ms",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the members have no protocol in common with it",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size allows",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata of the commit is longer than "
    "offset.metadata.max.bytes",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "a partition of the commit does not exist",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member epoch is not the one that the group has",
    ErrorCode.STALE_MEMBER_EPOCH: "the member epoch is stale: the member has to heartbeat first",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has the group.instance.id",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the requested assignor is not supported by this broker",
    ErrorCode.INVALID_REQUEST: "the fields of the request contradict each other",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has the transactional id",
    ErrorCode.INVALID_TXN_STATE: "the producer has no such ongoing transaction",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id has another producer id",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.UNSUPPORTED_VERSION: "the commit is of a version that has no member epoch",
}


class GroupRequestErrorLog:
    """Handlers report every error code that they send. Loop only."""

    def __init__(self, events: GroupEvents, now_ms: Callable[[], int]) -> None:
        self._events = events
        self._now_ms = now_ms
        self._log = RequestErrorLog(logger, now_ms)

    def log_refused(
        self, context: RequestContext, api_name: str, group_id: str, reason: str
    ) -> None:
        """Log that a protocol is not offered, once for all members at a client's address."""
        host = context.client_host
        if not self._log.is_new((host, api_name)):
            return
        client_id = shortened(context.header.client_id or "")
        self._log.write(
            f"{api_name} request for group {shortened(group_id)!r} (client {client_id!r} at "
            f"/{host}) failed with UNSUPPORTED_VERSION: {reason}"
        )

    def log(
        self,
        context: RequestContext,
        api_name: str,
        group_id: str | None,
        member_id: str,
        generation_id: int,
        error_code: int,
    ) -> None:
        """Logs the failed request, unless the error is part of the normal protocol."""
        if error_code in _EXPECTED:
            return
        if not self._log.is_new((group_id, member_id, api_name, error_code)):
            return
        reason = _REASONS.get(error_code, "see the error code")
        name = error_name(error_code)
        client_id, host = context.header.client_id or "", f"/{context.client_host}"
        self._log.write(
            f"{api_name} request of member {shortened(member_id)!r} in group "
            f"{shortened(group_id or '')!r} (client {shortened(client_id)!r} at {host}) failed "
            f"with {name}: {reason}",
        )
        kind = "fenced" if error_code in _FENCED else "rejected"
        event = GroupEvent(
            self._now_ms(),
            kind,
            generation_id,
            *(shortened(member_id), shortened(client_id), host),
            f"{api_name} request failed with {name}: {reason}",
        )
        self._events.add_to_known(group_id or "", event)
