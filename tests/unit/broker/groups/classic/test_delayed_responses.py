"""Responses to all members of a large group are sent in slices: what happens in the pauses."""

from __future__ import annotations

import pytest

from ottla.broker.runtime.slices import STEPS_PER_SLICE
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from tests.unit.broker.groups.helpers import PendingResponse, Setup

MEMBERS = 3 * 8 * STEPS_PER_SLICE
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


def test_a_member_that_rejoins_in_a_pause_gets_the_generation_twice() -> None:
    setup, joins = joining()
    last = list(setup.group().members)[-1]
    again = setup.join(last)
    assert (again.value.generation_id, again.value.member_id) == (1, last)
    assert joins[-1].is_pending
    setup.run_deferred()
    assert_first_generation(joins)


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


@pytest.mark.parametrize("state", ["joining", "syncing"])
def test_a_coordinator_that_stops_in_a_pause_responds(state: str) -> None:
    setup, joins = joining()
    syncs = syncing(setup, joins) if state == "syncing" else []
    setup.coordinator.shutdown()
    assert_first_generation(joins)
    assert done(syncs) == len(syncs)


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


def test_a_response_that_fails_does_not_stop_the_others() -> None:
    setup = Setup(group_initial_rebalance_delay_ms=DELAY_MS)
    broken = setup.join()
    joins = [setup.join() for _ in range(MEMBERS)]
    broken.values.append(JoinGroupResponse())  # the second response raises
    setup.timer.advance(2 * DELAY_MS)
    setup.run_deferred()
    assert_first_generation(joins)
