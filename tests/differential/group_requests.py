"""Requests about groups and offsets in short, and waiting for a broker to be ready for them."""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.doubles.eventually import eventually
from tests.doubles.transcript import Transcript

READY_DEADLINE_S = 60.0
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
OTHER_SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01u\xff\xff\xff\xff"
RANGE = (("range", SUBSCRIPTION),)


def join(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = RANGE,
    protocol_type: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
    reason: str | None = None,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name, data) for name, data in protocols],
        reason=reason,
    )


def sync(
    group: str,
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(known, data) for known, data in (assignments or {}).items()
        ],
    )


def commit(
    group: str,
    offsets: dict[tuple[str, int], int],
    member_id: str = "",
    generation: int = -1,
    *,
    instance: str | None = None,
    metadata: str | None = "",
    retention_ms: int = -1,
    leader_epoch: int = -1,
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name, rows) for name, rows in topics.items()],
    )


def fetch(
    group: str, topics: dict[str, list[int]] | None, version: int, *, stable: bool = False
) -> OffsetFetchRequest:
    if version >= 8:
        return OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=None
                    if topics is None
                    else [OffsetFetchRequestTopics(name, found) for name, found in topics.items()],
                )
            ],
            require_stable=stable,
        )
    return OffsetFetchRequest(
        group_id=group,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopic(name, found) for name, found in topics.items()],
        require_stable=stable,
    )


def offset_delete(group: str, topics: dict[str, list[int]]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(n) for n in found])
            for name, found in topics.items()
        ],
    )


def prepare(t: Transcript) -> None:
    """Topics t (2 partitions) and u (1), and the coordinators' topics; waits for leaders."""
    wanted = [CreatableTopic("t", 2, 1), CreatableTopic("u", 1, 1)]
    # A broker that has just started may not be controller yet.
    until(t, CreateTopicsRequest(topics=wanted, timeout_ms=10_000), 1, _are_there)
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline:
        topics = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="u")]
        asked = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        metadata = t.quietly(asked, 4)
        assert isinstance(metadata, MetadataResponse)
        errors = [topic.error_code for topic in metadata.topics]
        for key_type in (0, 1):
            found = t.quietly(FindCoordinatorRequest("any", key_type), 1)
            assert isinstance(found, FindCoordinatorResponse)
            errors.append(found.error_code)
        listed = t.quietly(ListGroupsRequest(), 0)
        errors.append(getattr(listed, "error_code"))  # noqa: B009  a Message has no such field
        if not any(errors):
            return
        time.sleep(0.1)
    raise AssertionError("the topics got no leaders")


def _are_there(response: Message) -> bool:
    assert isinstance(response, CreateTopicsResponse)
    done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    return all(topic.error_code in done for topic in response.topics)


def until(t: Transcript, message: Message, version: int, wanted: Callable[[Message], bool]) -> None:
    """Ask quietly until the response is as wanted: for what takes the broker its time."""
    eventually(
        lambda: wanted(t.quietly(message, version, "waiting")),
        f"never came true: {message}",
        seconds=READY_DEADLINE_S,
    )


def describe_state(group: str) -> DescribeGroupsRequest:
    return DescribeGroupsRequest([group])


def member_of(response: Message) -> str:
    assert isinstance(response, JoinGroupResponse)
    return response.member_id
