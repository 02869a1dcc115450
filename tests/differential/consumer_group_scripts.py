"""Conversations about groups of the new protocol (KIP-848), good and bad.

Each function is one conversation. They are held with Apache Kafka 3.9.1 in KRaft mode and with
Ottla, and the responses must be the same. Every conversation uses groups of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.message import Message
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.topics import TopicPartition
from tests.differential.group_requests import (
    commit,
    fetch,
    join,
    member_of,
    offset_delete,
    sync,
    until,
)
from tests.differential.group_requests import prepare as prepare_groups
from tests.doubles.transcript import Transcript

Script = Callable[[Transcript], None]
Owned = dict[str, list[int]]

WANTS_T = encode_subscription(Subscription(["t"]))
CLASSIC = (("range", WANTS_T),)


def prepare(t: Transcript) -> None:
    """Topics t (2 partitions), u (1) and wide (6)."""
    prepare_groups(t)
    t.quietly(
        CreateTopicsRequest(topics=[CreatableTopic("wide", 6, 1)], timeout_ms=10_000),
        5,
    )
    learn_topics(t)
    wait_for_assignments(t)


def wait_for_assignments(t: Transcript) -> None:
    """Until groups are given partitions of `wide`: on a busy machine Kafka's coordinator hears of a
    topic some time after Metadata has it."""
    beginning = ConsumerGroupHeartbeatRequest(
        group_id="ready",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["wide"],
        topic_partitions=[],
    )
    until(t, beginning, 0, _gives_partitions)
    leaving = ConsumerGroupHeartbeatRequest(group_id="ready", member_id="m", member_epoch=-1)
    t.quietly(leaving, 0)
    t.quietly(DeleteGroupsRequest(["ready"]), 2)


def _gives_partitions(response: Message) -> bool:
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    given = response.assignment
    return given is not None and any(row.partitions for row in given.topic_partitions)


def learn_topics(t: Transcript) -> None:
    """Teaches the transcript the ids; waits until all have one."""
    names = ["t", "u", "wide"]
    while len(t.topic_ids) < len(names):
        topics = [MetadataRequestTopic(name=name) for name in names]
        found = t.quietly(MetadataRequest(topics=topics), 12)
        assert isinstance(found, MetadataResponse)
        t.topic_ids.update({row.topic_id: row.name or "" for row in found.topics if row.partitions})


def beat(
    t: Transcript,
    group: str,
    member: str,
    epoch: int,
    *,
    topics: list[str] | None = None,
    owned: Owned | None = None,
    instance: str | None = None,
    rack: str | None = None,
    timeout_ms: int = -1,
    assignor: str | None = None,
    on: str = "main",
) -> ConsumerGroupHeartbeatResponse:
    ids = {name: topic_id for topic_id, name in t.topic_ids.items()}
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        instance_id=instance,
        rack_id=rack,
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_names=topics,
        server_assignor=assignor,
        topic_partitions=None
        if owned is None
        else [
            ConsumerGroupHeartbeatRequestTopicPartitions(ids.get(name, b"?" * 16), indexes)
            for name, indexes in owned.items()
        ],
    )
    response = t.ask(request, 0, on)
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    return response


def enter(
    t: Transcript,
    group: str,
    member: str,
    topics: list[str] | None = None,
    *,
    instance: str | None = None,
    assignor: str | None = None,
) -> ConsumerGroupHeartbeatResponse:
    return beat(
        t,
        group,
        member,
        0,
        topics=["t"] if topics is None else topics,
        owned={},
        timeout_ms=30_000,
        instance=instance,
        assignor=assignor,
    )


def look(t: Transcript, *groups: str) -> None:
    t.ask(ConsumerGroupDescribeRequest(list(groups), True), 0)


def read(
    t: Transcript, group: str, member: str | None, epoch: int, topics: Owned | None
) -> Message:
    return t.ask(
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    member_id=member,
                    member_epoch=epoch,
                    topics=None
                    if topics is None
                    else [OffsetFetchRequestTopics(name, found) for name, found in topics.items()],
                )
            ]
        ),
        9,
    )


def heartbeat_mistakes(t: Transcript) -> None:
    t.say("requests that are wrong by themselves")
    enter(t, "", "m")
    enter(t, "  ", "m")
    beat(t, "hm", "m", 0)
    beat(t, "hm", "m", 0, timeout_ms=100)
    beat(t, "hm", "m", 0, timeout_ms=100, owned={})
    beat(t, "hm", "m", 0, timeout_ms=100, owned={}, topics=[])
    beat(t, "hm", "m", 0, timeout_ms=100, owned={"t": [0]}, topics=["t"])
    enter(t, "hm", "m", instance="")
    beat(t, "hm", "m", 0, timeout_ms=100, owned={}, topics=["t"], rack=" ")
    enter(t, "hm", "m", assignor="sticky")
    enter(t, "hm", "m", assignor="")
    for epoch in (1, -1, -2, -3):
        beat(t, "hm", "", epoch)
        beat(t, "hm", "m", epoch)
        beat(t, "hm", "m", epoch, instance="i")
    t.say("none of them made a group")
    look(t, "hm")
    t.say("an id of the broker's choice")
    chosen = enter(t, "hm", "").member_id or ""
    beat(t, "hm", chosen, 1)
    t.say("wrong epochs and members of a group that is there")
    enter(t, "hm", "m")
    for epoch in (0, 1, 2, 3, 9):
        beat(t, "hm", "m", epoch)
    beat(t, "hm", "absent", 2)
    beat(t, "hm", "absent", -1)
    beat(t, "hm", "absent", -2, instance="i")
    beat(t, "hm", "m", 2, instance="i")
    beat(t, "hm", "m", 2, assignor="sticky")


def lone_member(t: Transcript) -> None:
    group = "lone-848"
    t.say("a topic that is not there, then more topics")
    enter(t, group, "m", ["missing"])
    look(t, group)
    beat(t, group, "m", 1, topics=["t", "missing"], owned={})
    beat(t, group, "m", 2, owned={"t": [0, 1]})
    look(t, group)
    beat(t, group, "m", 2, topics=["u"], owned={"t": [0, 1]})
    look(t, group)
    beat(t, group, "m", 2)
    beat(t, group, "m", 2, owned={})
    look(t, group)
    t.say("nothing new, all given again, an older epoch")
    beat(t, group, "m", 3)
    beat(t, group, "m", 3, topics=["u"], owned={"u": [0]}, timeout_ms=30_000)
    beat(t, group, "m", 2, owned={"u": [0]})
    beat(t, group, "m", 2, owned={"u": [0], "t": [0]})
    beat(t, group, "m", 2)
    # It does not join again with epoch 0 here: Kafka 3.9 refuses that, Kafka 4.3 and Ottla do not.
    look(t, group)
    for request in (
        ListGroupsRequest([], ["consumer"]),
        ListGroupsRequest(["Stable"], ["CONSUMER"]),
        ListGroupsRequest(["stable"], ["consumer"]),
        ListGroupsRequest(["reconciling", "assigning"], []),
        ListGroupsRequest([], ["nonsense"]),
    ):
        t.ask(request, 5)
    t.ask(DescribeGroupsRequest([group]), 5)
    t.ask(DeleteGroupsRequest([group]), 2)
    beat(t, group, "m", -1)
    look(t, group)
    t.ask(DeleteGroupsRequest([group]), 2)
    look(t, group)
    beat(t, group, "m", -1)


def two_members(t: Transcript) -> None:
    for assignor in ("range", "uniform"):
        group = f"two-{assignor}"
        t.say(f"a second member comes, {assignor}")
        enter(t, group, "a", ["wide"], assignor=assignor)
        beat(t, group, "a", 1, owned={"wide": [0, 1, 2, 3, 4, 5]})
        enter(t, group, "b", ["wide"], assignor=assignor)
        look(t, group)
        t.say("a has to give back; b waits")
        beat(t, group, "b", 2)
        beat(t, group, "a", 1, owned={"wide": [0, 1, 2, 3, 4, 5]})
        look(t, group)
        beat(t, group, "b", 2, owned={})
        beat(t, group, "a", 1)
        beat(t, group, "a", 1, owned={"wide": [0, 1, 2, 3]})
        beat(t, group, "a", 1, owned={"wide": [0, 1, 2]})
        look(t, group)
        beat(t, group, "b", 2)
        look(t, group)
        beat(t, group, "b", 2, owned={"wide": [3, 4, 5]})
        t.say("a leaves, b takes over")
        beat(t, group, "a", -1)
        look(t, group)
        beat(t, group, "b", 2)
        beat(t, group, "b", 3)
        look(t, group)
        t.say("a third one while the second revokes")
        enter(t, group, "c", ["wide"], assignor=assignor)
        beat(t, group, "b", 3)
        beat(t, group, "b", 3, topics=["u"])
        beat(t, group, "b", 3, owned={})
        look(t, group)
        beat(t, group, "b", 5)
        beat(t, group, "c", 4)
        look(t, group)


def static_members(t: Transcript) -> None:
    group = "static-848"
    t.say("an instance joins, another id wants its place")
    enter(t, group, "s1", instance="i")
    enter(t, group, "s2", instance="i")
    beat(t, group, "s2", 1, instance="i")
    beat(t, group, "s1", 1)
    beat(t, group, "s1", 1, instance="j")
    enter(t, group, "d")
    t.say("it is away and comes back")
    beat(t, group, "s1", -2, instance="j")
    beat(t, group, "s2", -2, instance="i")
    beat(t, group, "s1", -2, instance="i")
    look(t, group)
    beat(t, group, "s1", 1, instance="i")
    enter(t, group, "s2", instance="i")
    look(t, group)
    beat(t, group, "s1", 2, instance="i")
    beat(t, group, "s2", 2, instance="i", owned={})
    t.say("it leaves for good")
    beat(t, group, "s1", -1, instance="i")
    beat(t, group, "s2", -1, instance="i")
    look(t, group)


def offsets(t: Transcript) -> None:
    group = "offsets-848"
    t.say("before there is a group")
    t.ask(commit("nothing-848", {("t", 0): 1}, "m", 1), 9)
    t.ask(commit("nothing-848", {("t", 0): 1}, "m", 1), 8)
    read(t, "nothing-848", "m", 1, {"t": [0]})
    t.say("who may commit")
    enter(t, group, "m")
    for version in (2, 8, 9):
        t.ask(commit(group, {("t", 0): 5}, "m", 1), version)
        t.ask(commit(group, {("t", 0): 6}, "m", 0), version)
        t.ask(commit(group, {("t", 0): 6}, "m", 2), version)
        t.ask(commit(group, {("t", 0): 6}, "m", -1), version)
        t.ask(commit(group, {("t", 0): 6}, "absent", 1), version)
        t.ask(commit(group, {("t", 0): 6}), version)
    t.say("who may read")
    for member, epoch in (("m", 1), ("m", 0), ("m", 2), ("m", -1), ("absent", 1), ("", 1)):
        read(t, group, member, epoch, {"t": [0, 1]})
        read(t, group, member, epoch, None)
    read(t, group, None, -1, {"t": [0, 1]})
    read(t, group, None, -1, None)
    for version in (1, 2, 5, 7, 8):
        t.ask(fetch(group, {"t": [0]}, version), version)
    t.say("deleting them")
    t.ask(commit(group, {("u", 0): 7}, "m", 1), 9)
    t.ask(offset_delete(group, {"t": [0], "u": [0]}), 0)
    read(t, group, None, -1, None)
    t.say("without members")
    beat(t, group, "m", -1)
    t.ask(commit(group, {("t", 1): 8}), 9)
    t.ask(commit(group, {("t", 1): 8}, "m", 1), 9)
    read(t, group, "m", 1, None)
    t.ask(offset_delete(group, {"t": [0]}), 0)
    read(t, group, None, -1, None)
    t.ask(DeleteGroupsRequest([group]), 2)
    read(t, group, None, -1, None)


def classic_requests(t: Transcript) -> None:
    group = "classic-848"
    t.say("classic requests to a consumer group")
    enter(t, group, "m")
    t.ask(HeartbeatRequest(group, 1, "m"), 4)
    t.ask(sync(group, "m", 1), 5)
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity("m")]), 5)
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity("", "i"), MemberIdentity("x")]), 5)
    t.ask(join(group, protocols=(("range", b"?"),), protocol_type="connect"), 9)
    t.ask(join(group, protocols=()), 9)
    t.say("a consumer heartbeat to a classic group of another kind")
    first = member_of(t.ask(join("connect-848", protocol_type="connect"), 3))
    enter(t, "connect-848", "m")
    beat(t, "connect-848", first, 1)
    beat(t, "connect-848", first, -1)
    look(t, "connect-848")
    t.ask(LeaveGroupRequest("connect-848", members=[MemberIdentity(first)]), 5)
    t.say("an empty group changes its kind, and back")
    enter(t, "connect-848", "m")
    look(t, "connect-848")
    beat(t, "connect-848", "m", -1)
    again = t.ask(join("connect-848", protocol_type="connect"), 3)
    assert isinstance(again, JoinGroupResponse)
    # Kafka shows of a group what is committed, so there has to be something.
    t.ask(sync("connect-848", again.member_id, 1, {again.member_id: b"x"}), 3)
    t.ask(DescribeGroupsRequest(["connect-848"]), 5)
    t.ask(ListGroupsRequest([], ["classic"]), 5)


def upgrade_and_downgrade(t: Transcript) -> None:
    group = "moving"
    t.say("a classic group")
    response = t.ask(join(group, protocols=CLASSIC), 3)
    assert isinstance(response, JoinGroupResponse)
    old = response.member_id
    both = Assignment([TopicPartition("t", 0), TopicPartition("t", 1)])
    t.ask(sync(group, old, 1, {old: encode_assignment(both, 1)}), 3)
    t.ask(commit(group, {("t", 0): 3}, old, 1), 8)
    t.say("a member of the new protocol joins")
    enter(t, group, "new", assignor="range")
    look(t, group)
    read(t, group, None, -1, None)
    t.ask(HeartbeatRequest(group, 1, old), 3)
    t.ask(commit(group, {("t", 0): 4}, old, 1), 8)
    t.ask(commit(group, {("t", 0): 4}, old, 7), 8)
    t.ask(sync(group, old, 1), 3)
    response = t.ask(join(group, old, protocols=CLASSIC), 3)
    assert isinstance(response, JoinGroupResponse)
    t.ask(sync(group, old, response.generation_id), 3)
    t.ask(sync(group, old, 99), 3)
    t.ask(sync(group, old, response.generation_id, protocol_type="consumer", protocol_name="x"), 5)
    t.ask(HeartbeatRequest(group, response.generation_id, old), 3)
    beat(t, group, "new", 2)
    look(t, group)
    t.say("another classic member")
    t.ask(join(group, protocols=(("roundrobin", WANTS_T),)), 3)
    t.ask(join(group, protocols=CLASSIC), 4)
    other = member_of(t.ask(join(group, instance="k", protocols=CLASSIC), 5))
    t.ask(join(group, "absent", instance="k", protocols=CLASSIC), 5)
    look(t, group)
    beat(t, group, "new", 2, owned={"t": [1]})
    t.ask(HeartbeatRequest(group, 2, old), 3)
    t.ask(HeartbeatRequest(group, 3, other, "k"), 3)
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity("", "k")]), 3)
    look(t, group)
    t.say("the new one leaves, and the group is a classic one again")
    beat(t, group, "new", -1)
    look(t, group)
    t.ask(ListGroupsRequest(["PreparingRebalance"], ["classic"]), 5)
    t.ask(HeartbeatRequest(group, 99, old), 3)
    read(t, group, None, -1, None)


RECORDED = "recorded"


def what_is_written_down(t: Transcript) -> None:
    """All members have ids of their own choice, so that the records can be compared."""
    t.say("two members, one of them static; one revokes, one is replaced, one leaves")
    enter(t, RECORDED, "a", ["wide"], assignor="range")
    enter(t, RECORDED, "b", ["wide"], assignor="range", instance="i")
    beat(t, RECORDED, "a", 1, owned={"wide": [0, 1, 2, 3, 4, 5]})
    beat(t, RECORDED, "a", 1, owned={"wide": [3, 4, 5]}, rack="r")
    beat(t, RECORDED, "b", 2, instance="i", owned={})
    t.ask(commit(RECORDED, {("wide", 0): 5}, "b", 2), 9)
    beat(t, RECORDED, "b", -2, instance="i")
    enter(t, RECORDED, "c", ["wide"], instance="i")
    beat(t, RECORDED, "a", -1)
    beat(t, RECORDED, "c", 2, instance="i")
    beat(t, RECORDED, "c", -1, instance="i")
    t.ask(DeleteGroupsRequest([RECORDED]), 2)


SCRIPTS: tuple[Script, ...] = (
    heartbeat_mistakes,
    lone_member,
    two_members,
    static_members,
    offsets,
    classic_requests,
    upgrade_and_downgrade,
)
