"""Validates requests to consumer groups (KIP-848), in Kafka's order."""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from uuid import uuid4

from ottla.broker.groups.consumer.member import (
    AWAY,
    NEVER_JOINED,
    Assignment,
    ConsumerMember,
    is_subset,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

# From this version on members generate their ids, and may subscribe by regular expression.
FIRST_HEARTBEAT_WITH_REGEX = 1


class RejectedRequest(Exception):
    """A request fails validation: the error code and message of the response."""

    def __init__(self, error_code: int, reason: str) -> None:
        super().__init__(reason)
        self.error_code = error_code


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """Validate the fields of a heartbeat. Raises RejectedRequest."""
    for name, value in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    epoch = request.member_epoch
    if version >= FIRST_HEARTBEAT_WITH_REGEX and not request.member_id.strip():
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if epoch == NEVER_JOINED:
        if request.rebalance_timeout_ms == -1:
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request."
            )
        if request.topic_partitions is None or request.topic_partitions:
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining."
            )
        if not _has_subscription(request, version):
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request."
            )
    elif epoch < AWAY:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"MemberEpoch {epoch} is invalid.")
    elif not request.member_id.strip():
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    elif epoch == AWAY and request.instance_id is None:
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST, "InstanceId can't be null when MemberEpoch is -2."
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RejectedRequest(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _has_subscription(request: ConsumerGroupHeartbeatRequest, version: int) -> bool:
    if version < FIRST_HEARTBEAT_WITH_REGEX:
        return bool(request.subscribed_topic_names)
    # An empty subscription is valid when one of the fields is set.
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """Fence a member whose epoch is not the current one.

    With epoch 0 a member joins again: it has no partitions, and may have been fenced. The previous
    epoch is accepted when the member owns a subset of its assignment: then it has not
    received the last response.
    """
    if epoch in (NEVER_JOINED, member.epoch):
        return
    if (
        epoch < member.epoch
        and epoch == member.previous_epoch
        and owned is not None
        and is_subset(owned, member.assigned)
    ):
        return
    raise RejectedRequest(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a smaller or a larger member epoch ({epoch}) than the one "
        f"known by the group coordinator ({member.epoch}). The member must abandon all its "
        "partitions and rejoin.",
    )


def check_instance(
    known: ConsumerMember | None,
    instance_id: str,
    member_id: str,
    epoch: int | None = None,
    owned: Assignment | None = None,
) -> ConsumerMember:
    """Return the member of an instance id, if it is the sender. Raises RejectedRequest."""
    if known is None:
        raise RejectedRequest(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.member_id != member_id:
        raise RejectedRequest(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{known.member_id}.",
        )
    if epoch is not None:
        check_epoch(known, epoch, owned)
    return known


def unknown_member(member_id: str) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group."
    )


def new_member_id() -> str:
    """As Kafka's: a random UUID in URL-safe base64, 22 characters."""
    while True:
        text = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # a command line would parse it as an option
            return text


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return {row.topic_id: frozenset(row.partitions) for row in request.topic_partitions}
