"""Conversations about access control and quotas of share groups (KIP-932); see `share_scripts`.

Who has no access is the one user there is, ANONYMOUS: what these scripts use has rules of its own,
and everything else is allowed as it has none.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.message import Message
from ottla.protocol.messages import alter_share_group_offsets as altering
from ottla.protocol.messages import delete_share_group_offsets as deleting
from ottla.protocol.messages import describe_share_group_offsets as describing
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.share_fetch import ShareFetchResponse
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from tests.differential.share_scripts import (
    ACCEPT,
    FINAL,
    ONE,
    TWO,
    Script,
    acknowledge,
    beat,
    begin,
    learn_topics,
    take,
)
from tests.differential.share_scripts import fetch as fetch_of
from tests.doubles.eventually import eventually
from tests.doubles.transcript import Transcript

_ALLOW = 3
_HIDDEN = "hidden"  # a topic


def _allow_only(
    t: Transcript, resource: ResourceType, name: str, operations: Iterable[Operation]
) -> None:
    """A resource with rules is denied for all other operations."""
    rows = [
        AclCreation(resource, name, 3, "User:ANONYMOUS", "*", operation, _ALLOW)
        for operation in operations
    ]
    t.quietly(CreateAclsRequest(rows), 2)


def requests_of(group: str, topic: str) -> list[tuple[str, Message, int]]:
    """One of each administrative request."""
    offset = altering.AlterShareGroupOffsetsRequestPartition(0, 0)
    topics = [altering.AlterShareGroupOffsetsRequestTopic(topic, [offset])]
    wanted = describing.DescribeShareGroupOffsetsRequestTopic(topic, [0])
    described = describing.DescribeShareGroupOffsetsRequestGroup(group, [wanted])
    deleted = deleting.DeleteShareGroupOffsetsRequestTopic(topic)
    return [
        ("described", ShareGroupDescribeRequest([group]), 1),
        ("offsets", describing.DescribeShareGroupOffsetsRequest([described]), 0),
        ("offsets altered", altering.AlterShareGroupOffsetsRequest(group, topics), 0),
        ("offsets deleted", deleting.DeleteShareGroupOffsetsRequest(group, [deleted]), 0),
    ]


def a_group_without_access(t: Transcript) -> None:
    group = "private"
    topic_id = begin(t, group)
    _allow_only(t, ResourceType.GROUP, group, [Operation.ALTER_CONFIGS])

    def is_denied() -> bool:
        response = t.quietly(beat(group, ONE, 0), 1)
        assert isinstance(response, ShareGroupHeartbeatResponse)
        if not response.error_code:
            t.quietly(beat(group, ONE, FINAL), 1)
        return bool(response.error_code)

    eventually(is_denied, "the rule has no effect")
    for text, request, version in (
        ("a heartbeat", beat(group, ONE, 0), 1),
        ("a fetch", fetch_of(group, ONE, 0, topic_id), 1),
        ("an acknowledgement", acknowledge(group, ONE, 1, topic_id, (0, 0, [ACCEPT])), 1),
        *requests_of(group, "t"),
        ("deleted", DeleteGroupsRequest(groups_names=[group]), 2),
    ):
        t.say(text)
        t.ask(request, version)


def a_group_that_can_be_read(t: Transcript) -> None:
    """READ includes DESCRIBE, and not DELETE."""
    group = "readable"
    begin(t, group)
    _allow_only(t, ResourceType.GROUP, group, [Operation.READ])

    def is_denied() -> bool:
        request = deleting.DeleteShareGroupOffsetsRequest(group, [])
        response = t.quietly(request, 0)
        assert isinstance(response, deleting.DeleteShareGroupOffsetsResponse)
        return bool(response.error_code)

    eventually(is_denied, "the rule has no effect")
    for text, request, version in requests_of(group, "t"):
        t.say(text)
        t.ask(request, version)
    t.say("deleted")
    t.ask(DeleteGroupsRequest(groups_names=[group]), 2)


def a_topic_without_access(t: Transcript) -> None:
    group = "curious"
    topic_id = begin(t, group)
    t.quietly(CreateTopicsRequest(topics=[CreatableTopic(_HIDDEN, 1, 1)], timeout_ms=10_000), 5)
    learn_topics(t, _HIDDEN)
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        response = t.quietly(beat(group, TWO, epoch, None if epoch else ["t", _HIDDEN]), 1)
        assert isinstance(response, ShareGroupHeartbeatResponse)
        epoch = response.member_epoch
        assignment = response.assignment
        return assignment is not None and len(assignment.topic_partitions) == 2

    eventually(is_assigned, "no assignment")
    _allow_only(t, ResourceType.TOPIC, _HIDDEN, [Operation.CREATE])

    def is_denied() -> bool:
        response = t.quietly(beat(group, ONE, 0, [_HIDDEN]), 1)
        assert isinstance(response, ShareGroupHeartbeatResponse)
        if not response.error_code:
            t.quietly(beat(group, ONE, FINAL), 1)
        return bool(response.error_code)

    eventually(is_denied, "the rule has no effect")
    t.say("a subscription")
    t.ask(beat(group, ONE, 0, ["t", _HIDDEN]), 1)
    t.say("a group that has the topic")
    t.ask(ShareGroupDescribeRequest([group]), 1)
    t.quietly(beat(group, TWO, FINAL), 1)
    for text, request, version in requests_of(group, _HIDDEN):
        t.say(text)
        t.ask(request, version)
    t.say("the other topic")
    t.quietly(beat(group, ONE, 0), 1)
    take(t, group, ONE, 0, topic_id)


def quotas(t: Transcript) -> None:
    """The quota of consumers is that of share fetches, too."""
    group = "slow"
    topic_id = begin(t, group, ONE)
    entity = [AlterClientQuotasRequestEntityData("client-id", "slow")]
    change = AlterClientQuotasRequestEntryData(entity, [OpData("consumer_byte_rate", 10.0)])
    t.ask(AlterClientQuotasRequest([change]), 1)
    t.connection("slow", "slow")

    def is_throttled() -> bool:
        """Each fetch releases what the one before has acquired."""
        response = t.quietly(fetch_of(group, ONE, 0, topic_id, max_wait_ms=100), 1, "slow")
        assert isinstance(response, ShareFetchResponse)
        if response.throttle_time_ms > 0:
            return True
        t.quietly(fetch_of(group, ONE, FINAL), 1, "slow")
        return False

    eventually(is_throttled, "the quota has no effect")
    t.say("a fetch of this client is throttled")


SCRIPTS: tuple[Script, ...] = (
    *(a_group_without_access, a_group_that_can_be_read, a_topic_without_access, quotas),
)
