"""Delays, sessions, missing members, and what happens while all members get responses."""

from __future__ import annotations

import pytest

from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.classic.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.protocol.steps import run_at_once
from tests.unit.broker.groups.conftest import STEPS_PER_TURN
from tests.unit.broker.groups.helpers import GROUP, PendingResponse, Setup


def kinds(setup: Setup) -> list[str]:
    return [event.kind for event in setup.coordinator.events.of(GROUP)]


# Sessions.


def test_a_session_runs_out_without_heartbeats() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.timer.advance(9_999)
    assert setup.heartbeat(member, 1) == ErrorCode.NONE
    setup.timer.advance(9_999)
    assert setup.group().state is GroupState.STABLE
    setup.timer.advance(1)
    assert setup.group().state is GroupState.EMPTY
    assert setup.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert "expired" in kinds(setup)


def test_commits_and_syncs_keep_a_session_alive() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    for _ in range(3):
        setup.timer.advance(6_000)
        setup.commit({}, member, 1)
        setup.timer.advance(6_000)
        assert setup.sync(member, 1).value.error_code == ErrorCode.NONE


def test_a_failed_member_makes_the_others_rebalance() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    for _ in range(4):
        setup.timer.advance(3_000)
        code = setup.heartbeat(leader, generation)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    assert follower not in setup.group().members
    assert len(setup.join(leader).value.members) == 1


def test_no_session_runs_out_while_a_join_is_outstanding() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    waiting = setup.join(leader)
    for _ in range(10):
        setup.timer.advance(5_000)
        setup.heartbeat(follower, setup.group().generation_id)
    assert waiting.is_pending
    assert leader in setup.group().members


def test_no_session_runs_out_while_a_sync_is_outstanding() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    setup.join(leader)
    setup.join(follower)
    generation = setup.group().generation_id
    waiting = setup.sync(follower, generation)
    for _ in range(10):
        setup.timer.advance(5_000)
        setup.heartbeat(leader, generation)
    assert waiting.is_pending
    assert follower in setup.group().members


def test_a_new_member_that_waits_for_ever_is_given_up() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2)
    newcomer = setup.join(rebalance_timeout_ms=10 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        setup.heartbeat(leader, setup.group().generation_id)
        setup.timer.advance(5_000)
    assert newcomer.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_session_timeout_is_restored_after_the_response() -> None:
    """A member just joined has its own session timeout, not that of a new member."""
    setup = Setup()
    joined = setup.join().value
    setup.timer.advance(10_000)
    assert joined.member_id not in setup.group().members


# Members that do not come back, or do not sync.


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    waiting = setup.join(leader)
    for _ in range(12):
        setup.heartbeat(follower, generation)
        setup.timer.advance(5_000)
    assert waiting.value.error_code == ErrorCode.NONE
    assert [member.member_id for member in waiting.value.members] == [leader]
    assert setup.heartbeat(follower, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert "removed" in kinds(setup)


def test_a_member_that_rejoined_becomes_leader_when_the_leader_does_not() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    changed = setup.join(follower, protocols=(("range", b"new"),))
    for _ in range(12):
        setup.heartbeat(leader, generation)
        setup.timer.advance(5_000)
    assert changed.value.leader == follower


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    setup.join(leader)
    setup.join(follower)
    generation = setup.group().generation_id
    assert setup.sync(leader, generation, {leader: b"x", follower: b"y"}).value.assignment == b"x"
    for _ in range(12):
        setup.heartbeat(leader, generation)
        setup.heartbeat(follower, generation)
        setup.timer.advance(5_000)
    assert setup.group().state is GroupState.PREPARING_REBALANCE
    assert set(setup.group().members) == {leader}
    assert setup.join(leader).value.generation_id == generation + 1


def test_a_leader_that_does_not_sync_is_replaced() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    setup.join(leader)
    setup.join(follower)
    generation = setup.group().generation_id
    waiting = setup.sync(follower, generation)
    for _ in range(12):
        setup.heartbeat(leader, generation)
        setup.timer.advance(5_000)
    assert waiting.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert setup.join(follower).value.leader == follower


def test_static_members_are_waited_for_until_their_session_ends() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2, instances=True)
    waiting = setup.join(leader, instance_id="i0")
    setup.timer.advance(8_000)
    setup.heartbeat(follower, setup.group().generation_id, "i1")
    setup.timer.advance(8_000)
    assert waiting.is_pending
    setup.timer.advance(2_000)
    assert [member.member_id for member in waiting.value.members] == [leader]


def test_when_only_static_members_are_left_and_none_joins_the_group_waits_on() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2, instances=True)
    setup.leave((follower, "i1"))
    generation = setup.group().generation_id
    for _ in range(15):
        setup.timer.advance(5_000)
        setup.heartbeat(leader, generation, "i0")
    assert setup.group().state is GroupState.PREPARING_REBALANCE
    assert leader in setup.group().members
    assert setup.join(leader, instance_id="i0").value.generation_id == generation + 1


# Time and the end of the coordinator's term.


def test_a_loaded_member_has_one_session_to_show_up() -> None:
    (member,) = (before := Setup()).stable_group()
    setup = Setup(before.log)
    setup.timer.advance(9_999)
    assert setup.group().state is GroupState.STABLE
    assert setup.heartbeat(member, 1) == ErrorCode.NONE
    setup.timer.advance(10_000)
    assert setup.group().state is GroupState.EMPTY


def test_a_loaded_member_that_does_not_show_up_is_removed() -> None:
    (before := Setup()).stable_group()
    setup = Setup(before.log)
    assert setup.group().state is GroupState.STABLE
    setup.timer.advance(10_000)
    assert setup.group().state is GroupState.EMPTY


def test_no_sync_timer_runs_when_all_have_synced_or_left() -> None:
    setup = Setup()
    leader = setup.join(rebalance_timeout_ms=5_000).value.member_id
    setup.sync(leader, 1, {leader: b"x"})
    assert setup.timer.advance(9_999) == 0
    setup.join(leader, rebalance_timeout_ms=5_000)
    setup.leave((leader, None))
    assert setup.timer.advance(100_000) == 0


@pytest.mark.parametrize("delay_ms", [0, 3_000])
def test_resigning_in_the_middle_of_a_rebalance_stops_its_timers(delay_ms: int) -> None:
    setup = Setup(group_initial_rebalance_delay_ms=delay_ms)
    setup.join()
    setup.coordinator.on_resigned(0, 1)
    setup.coordinator.shutdown()
    assert setup.timer.advance(10_000_000) == 0
    rebalancer = setup.coordinator.membership._rebalancer
    assert rebalancer._in_initial_delay == set(), "it would keep the group for ever"


def test_resigning_completes_pending_joins_and_stops_the_timers() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2)
    joining = setup.join(leader)
    pending = setup.join(version=4).value.member_id
    assert pending
    setup.coordinator.on_resigned(0, 1)
    assert joining.value.error_code == ErrorCode.NOT_COORDINATOR
    assert setup.heartbeat(leader, 1) == ErrorCode.NOT_COORDINATOR
    setup.coordinator.shutdown()
    assert setup.timer.advance(10_000_000) == 0


def test_resigning_completes_pending_syncs() -> None:
    setup = Setup()
    member = setup.join().value.member_id
    setup.log.hold = True
    syncing = setup.sync(member, 1, {member: b"x"})
    setup.coordinator.on_resigned(0, 1)
    assert syncing.value.error_code == ErrorCode.NOT_COORDINATOR
    setup.log.commit_all()


def test_a_shut_down_coordinator_refuses() -> None:
    setup = Setup()
    setup.coordinator.shutdown()
    assert setup.join().value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (
        run_at_once(setup.coordinator.admin.list_groups())[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    )


# What a member keeps, and what the history says.


def test_a_pending_member_that_joined_stays_when_its_pending_time_is_over() -> None:
    setup = Setup()
    pending = setup.join(version=4).value.member_id
    assert setup.join(pending, version=4).value.generation_id == 1
    setup.sync(pending, 1, {pending: b"x"})
    for _ in range(4):
        setup.timer.advance(5_000)
        assert setup.heartbeat(pending, 1) == ErrorCode.NONE
    assert list(setup.group().members) == [pending]


def test_a_pending_member_that_left_may_come_back_for_as_long() -> None:
    """The timer of the first time does not end the second one."""
    setup = Setup()
    pending = setup.join(version=4).value.member_id
    setup.timer.advance(6_000)
    setup.leave((pending, None))
    rebalancer = setup.coordinator.membership._rebalancer
    rebalancer.add_pending_member(setup.group(), pending, 10_000)
    setup.timer.advance(9_999)
    assert pending in setup.group().pending_members
    setup.timer.advance(1)
    assert pending not in setup.group().pending_members


def test_a_session_starts_again_with_the_sync_response() -> None:
    setup = Setup()
    leader = setup.join().value.member_id
    setup.sync(leader, 1, {leader: b""})
    joining = setup.join()
    setup.join(leader)
    follower = joining.value.member_id
    waiting = setup.sync(follower, 2)
    for _ in range(3):
        setup.timer.advance(5_000)
        assert setup.heartbeat(leader, 2) == ErrorCode.NONE
    setup.sync(leader, 2, {follower: b"y"})
    assert waiting.value.assignment == b"y"
    for _ in range(2):
        setup.timer.advance(5_000)
        setup.heartbeat(leader, 2)
    assert list(setup.group().members) == [leader], "it sent nothing for a session"


def test_a_session_starts_again_with_a_failed_assignment() -> None:
    setup = Setup()
    leader = setup.join().value.member_id
    setup.log.hold = True
    syncing = setup.sync(leader, 1, {leader: b"x"})
    setup.timer.advance(15_000)
    assert setup.group().members, "no session expires while it waits"
    setup.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert syncing.value.error_code != ErrorCode.NONE
    assert setup.group().members[leader].assignment == b""
    setup.timer.advance(9_999)
    assert leader in setup.group().members
    setup.timer.advance(1)
    assert leader not in setup.group().members
    assert "expired" in kinds(setup)


def test_a_failed_assignment_does_not_extend_the_session_of_one_that_did_not_sync() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    setup.join(leader)
    setup.join(follower)
    setup.log.hold = True
    syncing = setup.sync(leader, setup.group().generation_id, {leader: b"x"})
    setup.timer.advance(5_000)
    setup.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert syncing.value.error_code != ErrorCode.NONE
    setup.timer.advance(5_000)
    assert list(setup.group().members) == [leader]


def test_a_rebalance_before_the_assignment_takes_back_the_old_one() -> None:
    setup = Setup()
    (leader,) = setup.stable_group()
    assert setup.group().members[leader].assignment
    joining = setup.join()
    setup.join(leader)
    assert setup.group().state is GroupState.COMPLETING_REBALANCE
    setup.join(protocols=(("range", b"third"),))
    assert setup.group().members[leader].assignment == b""
    assert joining.value.error_code == ErrorCode.NONE


def test_static_members_that_do_not_rejoin_are_left_behind_at_the_next_timeout() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2, instances=True)
    for name in ("i0", "i1"):
        member = setup.group().members[setup.group().static_members[name]]
        member.session_timeout_ms = 1_000_000
        setup.coordinator.membership._rebalancer.restart_session_timer(setup.group(), member)
    extra = setup.join()
    setup.leave((next(reversed(setup.group().members)), None))
    assert extra.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    setup.timer.advance(60_000)
    assert setup.group().state is GroupState.PREPARING_REBALANCE
    rejoined = setup.join(follower, instance_id="i1")
    assert rejoined.is_pending
    setup.timer.advance(60_000)
    assert rejoined.value.leader == follower
    assert sorted(setup.group().members) == sorted((leader, follower))


def test_a_group_loaded_at_the_limit_does_not_rebalance() -> None:
    (before := Setup()).stable_group(2)
    setup = Setup(before.log, group_max_size=2)
    assert setup.group().state is GroupState.STABLE


def test_the_history_of_a_group() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    assert kinds(setup)[-1] == "stable"
    setup.join(leader)
    setup.join(follower)
    setup.sync(leader, setup.group().generation_id)
    assert kinds(setup)[-1] == "stable"
    setup.join(leader)
    setup.join(follower, protocols=(("range", b"new"),))
    for _ in range(12):
        setup.timer.advance(5_000)
        setup.heartbeat(leader, setup.group().generation_id)
        setup.heartbeat(follower, setup.group().generation_id)
    removed = [
        (event.kind, event.member_id, event.reason)
        for event in setup.coordinator.events.of(GROUP)
        if event.kind == "removed"
    ]
    reason = "did not send SyncGroup within the rebalance timeout"
    assert ("removed", leader, reason) in removed
    setup.timer.advance(1_000_000)
    assert "empty" in kinds(setup)


def test_an_empty_generation_that_cannot_be_stored_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.leave((member, None))
    assert "Failed to write empty metadata" not in caplog.text
    (member,) = setup.stable_group()
    setup.log.hold = True
    setup.leave((member, None))
    setup.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert "Failed to write empty metadata for group g" in caplog.text


def test_members_without_an_assignment_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.stable_group()
    assert "Setting empty assignments" not in caplog.text
    other = Setup()
    leader = other.join().value.member_id
    other.sync(leader, 1)
    assert f"Setting empty assignments for members {leader} of group g" in caplog.text


MEMBERS = 3 * STEPS_PER_TURN
DELAY_MS = 3_000
SESSION_MS = 10_000
Join = PendingResponse[JoinGroupResponse]
Sync = PendingResponse[SyncGroupResponse]


def joining(*, are_static: bool = False) -> tuple[Setup, list[Join]]:
    """A group of which a slice of the members has JoinGroup responses of generation 1."""
    setup = Setup(group_initial_rebalance_delay_ms=DELAY_MS)
    joins = [
        setup.join(instance_id=f"i{number}" if are_static else None) for number in range(MEMBERS)
    ]
    setup.timer.advance(2 * DELAY_MS)
    assert 0 < done(joins) < MEMBERS
    return setup, joins


def done(responses: list[Join] | list[Sync]) -> int:
    return sum(not response.is_pending for response in responses)


def ids_of(joins: list[Join]) -> list[str]:
    return [join.value.member_id for join in joins]


def syncing(setup: Setup, joins: list[Join]) -> list[Sync]:
    """SyncGroup of all members in the first generation, the one of the leader last."""
    setup.run_deferred()
    ids = ids_of(joins)
    syncs = [setup.sync(member_id, 1) for member_id in ids[1:]]
    assert done(syncs) == 0
    leading = setup.sync(ids[0], 1, {member_id: member_id.encode() for member_id in ids})
    return [leading, *syncs]


def assert_first_generation(joins: list[Join]) -> None:
    assert all((join.value.error_code, join.value.generation_id) == (0, 1) for join in joins)


@pytest.mark.usefixtures("short_turns")
def test_the_members_that_wait_get_the_generation_in_their_order() -> None:
    setup, joins = joining()
    assert [join.is_pending for join in joins] == sorted(join.is_pending for join in joins)
    group = setup.group()
    assert group.num_members_awaiting_join == 0
    assert group.state.value == "CompletingRebalance"
    setup.run_deferred()
    assert_first_generation(joins)
    assert ids_of(joins) == list(group.members)
    assert [row.member_id for row in joins[0].value.members] == ids_of(joins)


@pytest.mark.usefixtures("short_turns")
def test_a_member_that_leaves_in_a_pause_gets_what_it_has_joined() -> None:
    setup, joins = joining()
    last = list(setup.group().members)[-1]
    assert setup.leave((last, None)) == (0, [0])
    setup.run_deferred()
    assert_first_generation(joins)
    assert joins[-1].value.member_id == last
    assert setup.heartbeat(last, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    again = [setup.join(member_id) for member_id in ids_of(joins[:-1])]
    setup.run_deferred()
    assert {join.value.generation_id for join in again} == {2}
    assert len(again[0].value.members) == MEMBERS - 1


@pytest.mark.usefixtures("short_turns")
def test_a_rebalance_that_begins_in_a_pause_waits_for_all_members() -> None:
    setup, joins = joining()
    new = setup.join(protocols=(("other", b""), ("range", b"\0\0\0\0\0\0")))
    assert setup.group().num_members_awaiting_join == 1
    setup.run_deferred()
    assert_first_generation(joins)
    assert len(joins[0].value.members) == MEMBERS
    ids = ids_of(joins)
    again = [setup.join(member_id) for member_id in ids[:-1]]
    assert new.is_pending
    assert done(again) == 0
    again.append(setup.join(ids[-1]))
    setup.run_deferred()
    assert {join.value.generation_id for join in (*again, new)} == {2}


@pytest.mark.usefixtures("short_turns")
def test_a_member_that_rejoins_in_a_pause_gets_the_generation_twice() -> None:
    setup, joins = joining()
    last = list(setup.group().members)[-1]
    again = setup.join(last)
    assert (again.value.generation_id, again.value.member_id) == (1, last)
    assert joins[-1].is_pending
    setup.run_deferred()
    assert_first_generation(joins)


@pytest.mark.usefixtures("short_turns")
def test_no_session_expires_before_the_response() -> None:
    setup, joins = joining()
    setup.timer.advance(SESSION_MS - 1)
    first = setup.group().members[ids_of(joins[:1])[0]]
    assert setup.heartbeat(first.member_id, 1) == ErrorCode.NONE
    setup.timer.advance(40_000)  # the first slice expires
    assert done(joins) < MEMBERS
    assert len(setup.group().members) == MEMBERS - done(joins)
    completed = done(joins)
    setup.run_deferred()
    assert_first_generation(joins)
    setup.timer.advance(SESSION_MS - 1)
    assert len(setup.group().members) == MEMBERS - completed
    setup.timer.advance(2)
    assert setup.group().members == {}


@pytest.mark.usefixtures("short_turns")
def test_the_assignment_that_is_stored_in_a_pause_is_given() -> None:
    setup, joins = joining()
    leader = joins[0].value
    ids = [row.member_id for row in leader.members]
    sync = setup.sync(leader.leader, 1, {member_id: member_id.encode() for member_id in ids})
    assert setup.group().state.value == "Stable"
    assert done(joins) < MEMBERS
    setup.run_deferred()
    assert sync.value.assignment == leader.leader.encode()
    assert_first_generation(joins)
    assert setup.sync(ids[-1], 1).value.assignment == ids[-1].encode()


@pytest.mark.usefixtures("short_turns")
def test_a_static_member_that_comes_back_in_a_pause() -> None:
    setup, joins = joining(are_static=True)
    old_id = list(setup.group().members)[-1]
    new = setup.join(instance_id=f"i{MEMBERS - 1}")
    setup.run_deferred()
    assert_first_generation(joins)
    assert joins[-1].value.member_id == old_id
    again = [
        setup.join(member_id, instance_id=f"i{number}")
        for number, member_id in enumerate(ids_of(joins[:-1]))
    ]
    setup.run_deferred()
    assert {join.value.generation_id for join in (*again, new)} == {2}
    assert new.value.member_id != old_id


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("is_back", [False, True])
def test_a_coordinator_that_resigns_in_a_pause(is_back: bool) -> None:
    setup, joins = joining()
    setup.coordinator.on_resigned(0, 1)
    if is_back:
        setup.elect(2)
    setup.run_deferred()
    assert_first_generation(joins)
    assert setup.log.appends == 0
    expected = ErrorCode.UNKNOWN_MEMBER_ID if is_back else ErrorCode.NOT_COORDINATOR
    assert setup.sync(ids_of(joins)[0], 1).value.error_code == expected
    before = setup.timer.advance(10 * 60_000 + 1)
    assert before <= 1 + int(is_back)  # no timers of members: that of expiration only
    assert setup.log.appends == 0


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("state", ["joining", "syncing"])
def test_a_coordinator_that_stops_in_a_pause_responds(state: str) -> None:
    setup, joins = joining()
    syncs = syncing(setup, joins) if state == "syncing" else []
    setup.coordinator.shutdown()
    assert_first_generation(joins)
    assert done(syncs) == len(syncs)


@pytest.mark.usefixtures("short_turns")
def test_assignments_are_sent_in_slices() -> None:
    setup, joins = joining()
    syncs = syncing(setup, joins)
    assert 0 < done(syncs) < MEMBERS
    assert setup.group().state.value == "Stable"
    last = ids_of(joins)[-1]
    assert setup.heartbeat(last, 1) == ErrorCode.NONE
    setup.run_deferred()
    for sync, member_id in zip(syncs, ids_of(joins), strict=True):
        assert (sync.value.error_code, sync.value.assignment) == (0, member_id.encode())


@pytest.mark.usefixtures("short_turns")
def test_no_session_expires_before_the_assignment_is_sent() -> None:
    setup, joins = joining()
    syncs = syncing(setup, joins)
    responded = done(syncs)
    setup.timer.advance(SESSION_MS + 1)
    assert len(setup.group().members) == MEMBERS - responded
    setup.run_deferred()
    assert {sync.value.error_code for sync in syncs} == {ErrorCode.NONE}
    assert len(setup.group().members) == MEMBERS - responded


@pytest.mark.usefixtures("short_turns")
def test_a_member_that_left_in_a_pause_has_no_timer() -> None:
    setup, joins = joining()
    last = list(setup.group().members.values())[-1]
    setup.leave((last.member_id, None))
    setup.run_deferred()
    assert joins[-1].value.error_code == ErrorCode.NONE
    assert last.session_timer is None


@pytest.mark.usefixtures("short_turns")
def test_a_rebalance_that_begins_before_all_have_their_assignments() -> None:
    setup, joins = joining()
    syncs = syncing(setup, joins)
    ids = ids_of(joins)
    assert setup.leave((ids[-1], None)) == (0, [0])
    setup.run_deferred()
    assert [sync.value.assignment for sync in syncs] == [each.encode() for each in ids]
    again = [setup.join(member_id) for member_id in ids[:-1]]
    setup.run_deferred()
    assert {join.value.generation_id for join in again} == {2}


@pytest.mark.usefixtures("short_turns")
def test_a_rebalance_ends_the_wait_for_assignments() -> None:
    setup, joins = joining()
    setup.run_deferred()
    ids = ids_of(joins)
    syncs = [setup.sync(member_id, 1) for member_id in ids[1:]]
    setup.leave((ids[0], None))
    assert 0 < done(syncs) < MEMBERS - 1
    again = setup.join(ids[-1])  # from another connection
    setup.timer.advance(SESSION_MS - DELAY_MS)
    setup.run_deferred()
    assert {sync.value.error_code for sync in syncs} == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert again.is_pending
    others = [setup.join(member_id) for member_id in ids[1:-1]]
    setup.run_deferred()
    assert {join.value.generation_id for join in (*others, again)} == {2}


@pytest.mark.usefixtures("short_turns")
def test_a_response_that_fails_does_not_stop_the_others() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=DELAY_MS)
    broken = setup.join()
    joins = [setup.join() for _ in range(MEMBERS)]
    broken.values.append(JoinGroupResponse())  # the second response raises
    setup.timer.advance(2 * DELAY_MS)
    setup.run_deferred()
    assert_first_generation(joins)
