"""The state of one classic group, without a coordinator."""

from __future__ import annotations

import pytest

from ottla.broker.groups.classic.group import Group, GroupState
from ottla.broker.groups.classic.member import Member, Protocols
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from tests.unit.broker.groups.helpers import SUBSCRIPTION, PendingResponse

RANGE: Protocols = (("range", SUBSCRIPTION),)


class Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def member(
    member_id: str,
    instance_id: str | None = None,
    protocols: Protocols = RANGE,
    protocol_type: str = "consumer",
    rebalance_timeout_ms: int = 60_000,
) -> Member:
    return Member(
        *(member_id, instance_id, "client", "/127.0.0.1", rebalance_timeout_ms, 10_000),
        *(protocol_type, protocols),
    )


def group_of(*members: Member) -> Group:
    """A group with these members, in a rebalance; none of them has rejoined."""
    group = Group("g", 0)
    group.transition_to(GroupState.PREPARING_REBALANCE, 1)
    for each in members:
        group.add(each, None)
    return group


def joins(group: Group, *members: Member) -> list[PendingResponse[JoinGroupResponse]]:
    found = []
    for each in members:
        response: PendingResponse[JoinGroupResponse] = PendingResponse()
        group.await_join(each, response)
        found.append(response)
    return found


def syncs(group: Group, each: Member) -> PendingResponse[SyncGroupResponse]:
    response: PendingResponse[SyncGroupResponse] = PendingResponse()
    group.await_sync(each, response)
    return response


def test_an_invalid_transition_is_refused() -> None:
    group = Group("g", 0)
    with pytest.raises(AssertionError, match="Instead it is in Empty state"):
        group.transition_to(GroupState.STABLE, 5)
    assert (group.state, group.state_timestamp_ms) == (GroupState.EMPTY, 0)


def test_the_oldest_remaining_member_leads() -> None:
    first, second, third = member("a"), member("b"), member("c")
    group = group_of(first, second, third)
    group.remove("b")
    assert group.leader_id == "a"
    group.remove("a")
    assert group.leader_id == "c"
    group.remove("c")
    assert group.leader_id is None
    assert group.rebalance_timeout_ms == 0


def test_a_removed_member_leaves_nothing() -> None:
    first, second = member("a"), member("b")
    group = group_of(first, second)
    (join,) = joins(group, first)
    sync = syncs(group, first)
    timer = Timer()
    first.session_timer = timer  # type: ignore[assignment]
    group.pending_sync_members.update(("a", "b"))
    group.remove("a")
    assert timer.is_cancelled
    assert join.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.num_members_awaiting_join == 0
    assert group.pending_sync_members == {"b"}
    group.remove("b")
    assert group._protocol_counts == {"range": 0}


def test_a_removed_member_keeps_the_instance_id_of_its_successor() -> None:
    group = group_of(member("a", "i"), member("b", "j"), member("c"))
    group.static_members["i"] = "b"
    group.remove("a")
    assert group.static_members == {"i": "b", "j": "b"}
    group.remove("c")
    assert group.static_members == {"i": "b", "j": "b"}
    group.remove("b")
    assert group.static_members == {"i": "b"}


def test_the_rebalance_timeout_is_that_of_the_slowest_member() -> None:
    fast, slow = member("a", rebalance_timeout_ms=1_000), member("b", rebalance_timeout_ms=9_000)
    group = group_of(fast, slow)
    assert group.rebalance_timeout_ms == 9_000
    group.update(slow, RANGE, 500, 20_000)
    assert group.rebalance_timeout_ms == 1_000
    assert slow.session_timeout_ms == 20_000


def test_all_have_joined_when_none_is_pending() -> None:
    first, second = member("a"), member("b")
    group = group_of(first, second)
    joins(group, first)
    assert not group.has_all_members_joined
    joins(group, second)
    assert group.has_all_members_joined
    group.pending_members.add("c")
    assert not group.has_all_members_joined


def test_a_next_generation_forgets_who_did_not_sync() -> None:
    group = group_of(member("a"))
    group.pending_sync_members.add("x")
    group.init_next_generation(7)
    assert (group.generation_id, group.state) == (1, GroupState.COMPLETING_REBALANCE)
    assert (group.protocol_name, group.pending_sync_members) == ("range", set())
    assert group.state_timestamp_ms == 7
    assert group.subscribed_topics == {"t"}
    group.transition_to(GroupState.PREPARING_REBALANCE, 8)
    group.remove("a")
    group.init_next_generation(9)
    assert (group.generation_id, group.state, group.protocol_name) == (2, GroupState.EMPTY, None)
    assert group.subscribed_topics == set()
    assert not group.is_subscribed_to("t")


def test_a_group_of_another_protocol_type_may_read_every_topic() -> None:
    group = group_of(member("a"))
    group.init_next_generation(1)
    assert not group.is_subscribed_to("u")
    group.protocol_type = "connect"
    group.update_subscribed_topics()
    assert group.subscribed_topics is None
    assert group.is_subscribed_to("u")


def test_a_group_that_cannot_be_deleted_is_as_before() -> None:
    group = group_of(member("a"))
    group.init_next_generation(1)
    again = group.recreated_empty(5)
    assert (again.group_id, again.protocol_type, again.generation_id) == ("g", "consumer", 1)
    assert (again.state, again.state_timestamp_ms) == (GroupState.EMPTY, 5)
    assert again.offsets is group.offsets
    assert again.subscribed_topics == set(), "no member of a consumer group: nothing is read"


def test_the_leader_is_one_that_has_rejoined() -> None:
    first, second, third = member("a"), member("b"), member("c")
    group = group_of(first, second, third)
    assert not group.ensure_joined_leader()
    assert group.leader_id == "a"
    joins(group, second, third)
    assert group.ensure_joined_leader()
    assert group.leader_id == "b"
    group.leader_id = "c"
    assert group.ensure_joined_leader()
    assert group.leader_id == "c"
    group.leader_id = None
    assert group.ensure_joined_leader()
    assert group.leader_id == "b"


def test_one_pending_request_of_each_kind() -> None:
    only = member("a")
    group = group_of(only)
    (first,) = joins(group, only)
    (second,) = joins(group, only)
    assert first.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.num_members_awaiting_join == 1
    assert group.invoke_join_callback(only, JoinGroupResponse())
    assert not group.invoke_join_callback(only, JoinGroupResponse())
    assert second.value.error_code == ErrorCode.NONE
    assert group.num_members_awaiting_join == 0
    old = syncs(group, only)
    new = syncs(group, only)
    assert old.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.invoke_sync_callback(only, SyncGroupResponse())
    assert not group.invoke_sync_callback(only, SyncGroupResponse())
    assert new.value.error_code == ErrorCode.NONE


def test_another_id_of_a_static_member_takes_its_place() -> None:
    first, second, third = member("a", "i"), member("b"), member("c")
    group = group_of(first, second, third)
    group.pending_sync_members.update(("a", "c"))
    assert group.replace_static_member("i", "z") is first
    assert list(group.members) == ["z", "b", "c"]
    assert (group.leader_id, group.static_members) == ("z", {"i": "z"})
    assert group.pending_sync_members == {"z", "c"}
    group.change_member_id(second, "y")
    assert list(group.members) == ["z", "y", "c"]
    assert (group.leader_id, group.pending_sync_members) == ("z", {"z", "c"})


def test_most_votes_select_the_protocol() -> None:
    both: Protocols = (("range", b"1"), ("sticky", b"2"))
    other: Protocols = (("sticky", b"2"), ("range", b"1"), ("own", b"3"))
    group = group_of(
        member("a", protocols=both), member("b", protocols=other), member("c", protocols=other)
    )
    assert group.select_protocol() == "sticky"
    group.remove("c")
    assert group.select_protocol() == "range", "of a tie, the vote of the oldest member"
    assert group.supports_protocols("consumer", (("own", b""), ("range", b"")))
    assert not group.supports_protocols("consumer", (("own", b""),))
    assert not group.supports_protocols("connect", (("range", b""),))


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("a", "i", ErrorCode.NONE),
        ("a", None, ErrorCode.NONE),
        ("b", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("a", "j", ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_is_a_member(member_id: str, instance_id: str | None, code: int) -> None:
    group = group_of(member("a", "i"), member("b"))
    assert group.check_member(member_id, instance_id) == code
