"""What can be wrong with a request to a consumer group (KIP-848), in Kafka's order."""

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

# From this version of the heartbeat on members choose their ids, and may subscribe by pattern.
FIRST_HEARTBEAT_WITH_PATTERNS = 1


class RejectedRequest(Exception):
    """The request cannot be granted: the error code, and why in words."""

    def __init__(self, error_code: int, reason: str) -> None:
        super().__init__(reason)
        self.error_code = error_code


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """What can be wrong with a heartbeat by itself."""
    for name, value in (
        ("group id", request.group_id),
        ("instance id", request.instance_id),
        ("rack id", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"the {name} is empty")
    epoch = request.member_epoch
    if version >= FIRST_HEARTBEAT_WITH_PATTERNS and not request.member_id.strip():
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the member id is empty")
    if epoch == NEVER_JOINED:
        if request.rebalance_timeout_ms == -1:
            raise RejectedRequest(
                ErrorCode.INVALID_REQUEST, "who joins has to say its rebalance timeout"
            )
        if request.topic_partitions is None or request.topic_partitions:
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, "who joins must not have partitions")
        if not _names_topics(request, version):
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, "who joins has to name its topics")
    elif epoch < AWAY:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"there is no member epoch {epoch}")
    elif not request.member_id.strip():
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the member id is empty")
    elif epoch == AWAY and request.instance_id is None:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "only who has an instance id can be back")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RejectedRequest(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"there is no assignor {request.server_assignor!r} here, but {', '.join(assignors)}",
        )


def _names_topics(request: ConsumerGroupHeartbeatRequest, version: int) -> bool:
    if version < FIRST_HEARTBEAT_WITH_PATTERNS:
        return bool(request.subscribed_topic_names)
    # Who subscribes to nothing is a member all the same, when it says so.
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """A member that is ahead or behind has to begin anew. One epoch behind may be a member that
    did not get the last answer: that it has nothing more than it was given shows it."""
    if epoch == member.epoch:
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
        f"the member comes with epoch {epoch}, and is at {member.epoch}: it has to give up all "
        "its partitions and join anew",
    )


def check_instance(
    known: ConsumerMember | None,
    instance_id: str,
    member_id: str,
    epoch: int | None = None,
    owned: Assignment | None = None,
) -> ConsumerMember:
    """The member of an instance, if it is the one that says so."""
    if known is None:
        raise RejectedRequest(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no instance {instance_id}")
    if known.member_id != member_id:
        raise RejectedRequest(
            ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id} is member {known.member_id} now"
        )
    if epoch is not None:
        check_epoch(known, epoch, owned)
    return known


def unknown_member(member_id: str) -> RejectedRequest:
    return RejectedRequest(
        ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {member_id} in the group"
    )


def new_member_id() -> str:
    """As Kafka's: a random UUID in its URL-safe base64 form of 22 letters."""
    while True:
        text = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # which command lines take for an option
            return text


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return {row.topic_id: frozenset(row.partitions) for row in request.topic_partitions}
