"""Conversations about consumer groups, good and bad, in every version of every request.

Each function is one conversation. They are held with Apache Kafka and with Ottla, and what is
responses must be the same. Every conversation uses groups of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.differential.group_requests import (
    SUBSCRIPTION,
    commit,
    describe_state,
    fetch,
    join,
    member_of,
    offset_delete,
    sync,
    until,
)
from tests.doubles.transcript import Transcript

Script = Callable[[Transcript], None]


def lone_member_in_every_version(t: Transcript) -> None:
    for version in range(10):
        group = f"lone-{version}"
        t.say(f"a lone member, JoinGroup v{version}")
        response = t.ask(join(group, reason="because" if version >= 8 else None), version)
        assert isinstance(response, JoinGroupResponse)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            response = t.ask(join(group, response.member_id), version)
            assert isinstance(response, JoinGroupResponse)
        member = response.member_id
        sync_version = min(version, 5)
        named = sync_version >= 5
        t.ask(
            sync(
                group,
                member,
                response.generation_id,
                {member: b"\x01\x02"},
                protocol_type="consumer" if named else None,
                protocol_name="range" if named else None,
            ),
            sync_version,
        )
        t.ask(HeartbeatRequest(group, response.generation_id, member), min(version, 4))
        t.ask(describe_state(group), min(version, 5))
        if version < 3:
            t.ask(LeaveGroupRequest(group, member), version)
        else:
            t.ask(LeaveGroupRequest(group, members=[MemberIdentity(member)]), min(version, 5))
        t.ask(describe_state(group), min(version, 5))
        t.ask(DeleteGroupsRequest([group]), min(version, 2))
        t.ask(describe_state(group), min(version, 5))


def join_mistakes(t: Transcript) -> None:
    for version in range(10):
        t.say(f"mistakes in JoinGroup v{version}")
        t.ask(join(""), version)
        t.ask(join("jm", session_ms=10), version)
        t.ask(join("jm", session_ms=2_000_000), version)
        t.ask(join("jm", session_ms=-1), version)
        t.ask(join("jm", "absent"), version)
        t.ask(join("jm", protocols=()), version)
        t.ask(join("jm", protocol_type=""), version)
        t.ask(join("jm", "", protocol_type="", protocols=()), version)
        odd = (("range", b"1"), ("range", b"2"), ("", b""))
        member = member_of(t.ask(join("jm", protocols=odd), version))
        t.ask(LeaveGroupRequest("jm", member), 2)
    t.say("a client without a name")
    t.connection("nameless", client_id=None)
    t.ask(join("nameless"), 4, on="nameless")
    t.say("a pending member id with an instance id")
    member = member_of(t.ask(join("pending"), 5))
    t.ask(join("pending", member, instance="i"), 5)
    t.say("a pending member leaves")
    t.ask(LeaveGroupRequest("pending", members=[MemberIdentity(member)]), 3)
    t.ask(join("pending", member), 5)


def joined_group_mistakes(t: Transcript) -> None:
    t.say("a group with one member")
    group = "jgm"
    response = t.ask(join(group), 3)
    member = member_of(response)
    t.say("before the sync")
    t.ask(HeartbeatRequest(group, 1, member), 3)
    t.ask(HeartbeatRequest(group, 2, member), 3)
    t.ask(commit(group, {("t", 0): 1}, member, 1), 7)
    t.ask(commit(group, {("t", 0): 1}), 7)
    t.ask(join(group, protocol_type="connect"), 3, on="other")
    t.ask(join(group, protocols=(("roundrobin", b""),)), 3, on="other")
    t.ask(join(group, member), 3)
    t.ask(sync(group, "absent", 1), 3)
    t.ask(sync(group, member, 2), 3)
    t.ask(sync(group, member, 1, protocol_type="connect", protocol_name="range"), 5)
    t.ask(sync(group, member, 1, protocol_type="consumer", protocol_name="x"), 5)
    t.ask(sync(group, member, 1), 5)
    t.ask(sync(group, member, 1, instance="absent"), 3)
    t.ask(describe_state(group), 5)
    t.ask(sync(group, member, 1, {"absent": b"x"}), 3)
    t.say("stable, with an empty assignment")
    t.ask(sync(group, member, 1, {member: b"ignored"}), 3)
    t.ask(HeartbeatRequest(group, 1, member, "absent"), 3)
    t.ask(HeartbeatRequest(group, 0, member), 3)
    t.ask(HeartbeatRequest(group, 1, "absent"), 3)
    t.ask(HeartbeatRequest("", 1, member), 3)
    t.ask(HeartbeatRequest("unknown", 1, member), 3)
    t.ask(sync("", member, 1), 3)
    t.ask(sync("unknown", member, 1), 3)
    t.ask(DeleteGroupsRequest([group, "unknown", "", group]), 2)
    t.ask(DescribeGroupsRequest([group, "unknown", "", group], True), 5)
    t.ask(ListGroupsRequest(["Stable"]), 4)
    t.ask(ListGroupsRequest(["sTaBLE", "Nonsense"], ["classic"]), 5)
    t.ask(ListGroupsRequest(["Stable"], ["Classic"]), 5)
    t.ask(ListGroupsRequest([], ["consumer"]), 5)
    t.ask(ListGroupsRequest([], ["nonsense"]), 5)
    t.ask(ListGroupsRequest(["Dead"]), 4)
    t.say("the leader joins again: a rebalance")
    t.ask(join(group, member), 3)
    t.ask(HeartbeatRequest(group, 1, member), 3)
    t.ask(HeartbeatRequest(group, 2, member), 3)
    t.say("leaving in versions 0 to 2 and 3 to 5")
    t.ask(LeaveGroupRequest(group, "absent"), 2)
    t.ask(LeaveGroupRequest("", "absent"), 2)
    t.ask(LeaveGroupRequest("unknown", "absent"), 2)
    t.ask(LeaveGroupRequest("unknown", members=[MemberIdentity("absent")]), 3)
    t.ask(LeaveGroupRequest("", members=[MemberIdentity("absent")]), 3)
    t.ask(LeaveGroupRequest(group, members=[]), 3)
    t.ask(
        LeaveGroupRequest(
            group,
            members=[
                MemberIdentity("absent"),
                MemberIdentity("", "noone"),
                MemberIdentity("", None),
                MemberIdentity(member, "noone"),
                MemberIdentity(member, None, "enough"),
                MemberIdentity(member, None),
            ],
        ),
        5,
    )
    t.ask(describe_state(group), 5)


def two_members_rebalance(t: Transcript) -> None:
    group = "two"
    both = (("range", SUBSCRIPTION), ("roundrobin", b"r"))
    t.say("the first member")
    first = member_of(t.ask(join(group, protocols=both), 3, on="a"))
    t.ask(sync(group, first, 1, {first: b"all"}), 3, on="a")
    t.say("the second joins and waits")
    t.send(join(group, protocols=(("range", b"s"), ("roundrobin", b""))), 3, on="b")
    until(t, HeartbeatRequest(group, 1, first), 3, lambda r: getattr(r, "error_code", 0) == 27)
    t.ask(commit(group, {("t", 0): 5}, first, 1), 7)
    t.ask(sync(group, first, 1), 3)
    t.ask(describe_state(group), 5)
    t.ask(join(group, protocol_type="consumer", protocols=(("other", b""),)), 3)
    t.say("the first joins again")
    t.ask(join(group, first, protocols=both), 3, on="a")
    second = member_of(t.receive("b"))
    t.say("the follower syncs first")
    t.send(sync(group, second, 2, {second: b"not the leader"}), 3, on="b")
    t.ask(HeartbeatRequest(group, 2, second), 3)
    t.ask(sync(group, first, 2, {first: b"half", second: b"other"}), 3, on="a")
    t.receive("b")
    t.ask(describe_state(group), 5)
    t.say("a follower that joins again without a change gets its response at once")
    t.ask(join(group, second, protocols=(("range", b"s"), ("roundrobin", b""))), 3, on="b")
    t.say("a follower that joins again with a change rebalances")
    t.send(join(group, second, protocols=(("range", b"new"), ("roundrobin", b""))), 3, on="b")
    until(t, HeartbeatRequest(group, 2, first), 3, lambda r: getattr(r, "error_code", 0) == 27)
    t.ask(join(group, first, protocols=both), 3, on="a")
    t.receive("b")
    t.say("a member leaves while the other waits for the assignment")
    t.send(sync(group, second, 3), 3, on="b")
    until(t, describe_state(group), 0, lambda r: "Completing" in repr(r))
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity(first)]), 3)
    t.receive("b")
    t.ask(join(group, second, protocols=(("range", b"s"), ("roundrobin", b""))), 3, on="b")
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity(second)]), 3)


def static_members(t: Transcript) -> None:
    group = "static"
    both = (("range", SUBSCRIPTION), ("other", b"o"))
    turned = (("other", b"o"), ("range", SUBSCRIPTION))
    t.say("a static member joins, in a version without member id requirement for it")
    first = member_of(t.ask(join(group, instance="i1", protocols=both), 7, on="a"))
    t.ask(
        sync(
            group,
            first,
            1,
            {first: b"all"},
            instance="i1",
            protocol_type="consumer",
            protocol_name="range",
        ),
        5,
        on="a",
    )
    t.say("it restarts: old versions see the old leader, version 9 skips the assignment")
    again = member_of(t.ask(join(group, instance="i1", protocols=both), 7, on="a"))
    once_more = member_of(t.ask(join(group, instance="i1", protocols=both), 9, on="a"))
    t.say("who comes with the old id is fenced")
    for old in (first, again):
        t.ask(HeartbeatRequest(group, 1, old, "i1"), 4)
        t.ask(HeartbeatRequest(group, 1, old), 4)
        t.ask(join(group, old, instance="i1"), 7)
        t.ask(sync(group, old, 1, instance="i1"), 3)
        t.ask(commit(group, {("t", 0): 1}, old, 1, instance="i1"), 8)
        t.ask(LeaveGroupRequest(group, members=[MemberIdentity(old, "i1")]), 4)
    t.ask(HeartbeatRequest(group, 1, once_more, "i1"), 4)
    t.ask(HeartbeatRequest(group, 1, once_more), 4)
    t.ask(HeartbeatRequest(group, 1, once_more, "i2"), 4)
    t.ask(join(group, "x", instance="i2"), 7)
    t.ask(commit(group, {("t", 0): 1}, once_more, 1, instance="i1"), 8)
    t.ask(commit(group, {("t", 0): 1}, "", 1, instance="i1"), 8)
    t.ask(commit(group, {("t", 0): 1}, "", -1, instance="i1"), 8)
    t.ask(describe_state(group), 5)
    t.say("it comes with a protocol that is not the group's")
    t.ask(join(group, instance="i1", protocols=(("third", b""),)), 9, on="a")
    t.say("it restarts and now prefers another protocol: a rebalance")
    t.ask(join(group, instance="i1", protocols=turned), 9, on="a")
    t.say("it restarts before the sync: a rebalance")
    member = member_of(t.ask(join(group, instance="i1", protocols=turned), 9, on="b"))
    t.ask(describe_state(group), 5)
    t.say("a second static member waits, and is replaced while it waits")
    t.send(join(group, instance="i2", protocols=turned), 9, on="c")
    until(t, describe_state(group), 0, lambda r: "Preparing" in repr(r))
    t.send(join(group, instance="i2", protocols=turned), 9, on="d")
    t.receive("c")
    t.ask(join(group, member, instance="i1", protocols=turned), 9, on="b")
    second = member_of(t.receive("d"))
    t.say("a follower restarts in a stable group")
    t.ask(sync(group, member, 4, {member: b"1", second: b"2"}, instance="i1"), 3, on="b")
    t.ask(sync(group, second, 4, instance="i2"), 3, on="d")
    t.ask(join(group, instance="i2", protocols=turned), 9, on="d")
    t.ask(join(group, instance="i2", protocols=turned), 5, on="d")
    t.say("an administrator removes an instance")
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity("", "i2", "removed")]), 5)
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity("", "i2")]), 5)
    t.ask(LeaveGroupRequest(group, members=[MemberIdentity("", "i1")]), 5)
    t.ask(describe_state(group), 5)


def offsets_in_every_version(t: Transcript) -> None:
    for version in range(1, 10):
        group = f"simple-{version}"
        t.say(f"a simple consumer, OffsetCommit v{version}")
        t.ask(
            commit(
                group,
                {("t", 0): 7, ("t", 1): 0, ("u", 0): -5, ("t", 9): 1, ("nowhere", 0): 1},
                metadata="note",
                leader_epoch=3 if version >= 6 else -1,
            ),
            version,
        )
        for fetch_version in range(1, 10):
            t.ask(fetch(group, {"t": [0, 1, 5], "nowhere": [0]}, fetch_version), fetch_version)
            if fetch_version >= 2:
                t.ask(fetch(group, None, fetch_version), fetch_version)
            t.ask(fetch(group, {}, fetch_version), fetch_version)
        t.ask(commit(group, {("t", 0): 8}, metadata=None), version)
        t.ask(commit(group, {("t", 0): 8}, metadata="m" * 4_096), version)
        t.ask(commit(group, {("t", 0): 9, ("t", 1): 9}, metadata="m" * 4_097), version)
        t.ask(commit(group, {("t", 0): 10}, "someone"), version)
        t.ask(commit(group, {("t", 0): 11}, "", 0), version)
        t.ask(commit(group, {("t", 0): 12}, "someone", 0), version)
        t.ask(commit(group, {}), version)
        t.ask(fetch(group, None, 7), 7)
    for version in range(1, 10):
        t.say(f"groups that are not there, v{version}")
        t.ask(commit("", {("t", 0): 3}), version)
        t.ask(fetch("", {"t": [0]}, version), version)
        t.ask(commit("unknown", {("t", 0): 3}, "", 5), version)
        t.ask(fetch("unknown", {"t": [0]}, version), version)
    t.say("several groups in one request")
    t.ask(
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup("simple-1", topics=None),
                OffsetFetchRequestGroup("unknown", topics=[OffsetFetchRequestTopics("t", [0, 1])]),
                OffsetFetchRequestGroup("unknown", topics=None),
                OffsetFetchRequestGroup("simple-1", topics=[OffsetFetchRequestTopics("t", [1])]),
                OffsetFetchRequestGroup("simple-2", "absent", 5, topics=None),
            ],
            require_stable=True,
        ),
        9,
    )
    t.say("deleting groups and offsets")
    t.ask(offset_delete("simple-1", {"t": [0, 5], "nowhere": [0]}), 0)
    t.ask(fetch("simple-1", None, 7), 7)
    t.ask(offset_delete("unknown", {"t": [0]}), 0)
    t.ask(offset_delete("", {"t": [0]}), 0)
    t.ask(offset_delete("simple-2", {}), 0)
    t.ask(DeleteGroupsRequest(["simple-1", "simple-2", "unknown"]), 1)
    t.ask(fetch("simple-1", None, 7), 7)
    t.ask(DeleteGroupsRequest([]), 1)


def offsets_in_znodes(t: Transcript) -> None:
    t.say("version 0 of both requests is about the znode tree")
    t.ask(commit("zk", {("t", 0): 7, ("t", 1): 0, ("nowhere", 0): 1}, metadata="lost"), 0)
    t.ask(fetch("zk", {"t": [0, 1, 5], "nowhere": [0], "u": [0]}, 0), 0)
    t.ask(fetch("zk", {"t": [0]}, 1), 1)
    t.ask(commit("zk", {("t", 0): 8}, metadata="m" * 4_097), 0)
    t.ask(commit("zk", {("t", 0): 9}, metadata=None), 0)
    t.ask(fetch("zk", {"t": [0, 1]}, 0), 0)
    t.ask(fetch("unknown", {"t": [0]}, 0), 0)
    t.ask(fetch("zk", {}, 0), 0)
    t.ask(commit("zk", {}), 0)


def offset_delete_in_a_live_group(t: Transcript) -> None:
    t.say("a consumer group subscribed to t has offsets in t and u")
    group = "live"
    member = member_of(t.ask(join(group), 3))
    t.ask(sync(group, member, 1, {member: b""}), 3)
    t.ask(commit(group, {("t", 0): 1, ("u", 0): 2}, member, 1), 7)
    t.ask(offset_delete(group, {"t": [0], "u": [0]}), 0)
    t.ask(fetch(group, None, 7), 7)
    t.say("a group of another protocol type")
    other = "connect"
    member = member_of(t.ask(join(other, protocol_type="connect"), 3))
    t.ask(sync(other, member, 1, {member: b""}), 3)
    t.ask(commit(other, {("t", 0): 1}, member, 1), 7)
    t.ask(offset_delete(other, {"t": [0]}), 0)
    t.say("a consumer group whose subscription cannot be read")
    odd = "odd"
    member = member_of(t.ask(join(odd, protocols=(("range", b"?"),)), 3))
    t.ask(sync(odd, member, 1, {member: b""}), 3)
    t.ask(commit(odd, {("u", 0): 1}, member, 1), 7)
    t.ask(offset_delete(odd, {"u": [0]}), 0)
    t.ask(describe_state(odd), 5)


def find_coordinator(t: Transcript) -> None:
    for version in range(7):
        t.say(f"FindCoordinator v{version}")
        for key_type in (0, 1, 2, 3, -1) if version else (0,):
            if version < 4:
                t.ask(FindCoordinatorRequest("g", key_type), version)
                t.ask(FindCoordinatorRequest("", key_type), version)
            else:
                keys = ["g", "", "g"]
                t.ask(FindCoordinatorRequest("", key_type, keys), version)
                t.ask(FindCoordinatorRequest("", key_type, []), version)


def expiring_members(t: Transcript) -> None:
    t.say("a member whose session runs out is removed")
    group = "expiring"
    member = member_of(t.ask(join(group, session_ms=1_000), 3))
    t.ask(sync(group, member, 1, {member: b""}), 3)
    until(t, describe_state(group), 0, lambda r: "Empty" in repr(r))
    t.ask(HeartbeatRequest(group, 1, member), 3)
    t.ask(describe_state(group), 5)
    t.say("a pending member id runs out")
    member = member_of(t.ask(join(group, session_ms=1_000), 4))
    until(t, join(group, member, session_ms=1), 4, lambda r: True)
    time.sleep(5)  # it has 1 s; nothing shows that the id is gone but using it
    t.ask(join(group, member, session_ms=1_000), 4)
    t.say("a member that does not sync is removed and the group continues")
    first = member_of(t.ask(join(group, session_ms=9_000, rebalance_ms=1_500), 3))
    until(t, describe_state(group), 0, lambda r: "Empty" in repr(r))
    t.ask(HeartbeatRequest(group, 2, first), 3)
    t.ask(describe_state(group), 5)
    t.say("a member that does not join again in time is removed")
    first = member_of(t.ask(join(group, session_ms=9_000, rebalance_ms=1_000), 3, on="a"))
    response = t.quietly(describe_state(group), 5)
    assert response is not None
    t.send(join(group, session_ms=9_000, rebalance_ms=1_000), 3, on="b")
    second = t.receive("b")
    assert isinstance(second, JoinGroupResponse)
    t.ask(sync(group, second.member_id, second.generation_id, {second.member_id: b"x"}), 3, on="b")
    t.ask(HeartbeatRequest(group, second.generation_id, first), 3)
    t.ask(describe_state(group), 5)


SCRIPTS: tuple[Script, ...] = (
    lone_member_in_every_version,
    join_mistakes,
    joined_group_mistakes,
    two_members_rebalance,
    static_members,
    offsets_in_every_version,
    offsets_in_znodes,
    offset_delete_in_a_live_group,
    find_coordinator,
    expiring_members,
)
