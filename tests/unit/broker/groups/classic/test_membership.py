"""Joining, syncing, heartbeating and leaving a classic group."""

import pytest

from ottla.broker.groups.classic.group import GroupState
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.groups.helpers import GROUP, SUBSCRIPTION, T0, Setup


def test_a_lone_member_leads_and_gets_what_it_assigns_itself() -> None:
    setup = Setup()
    joined = setup.join().value
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_type == "consumer"
    assert joined.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, SUBSCRIPTION)]
    synced = setup.sync(joined.member_id, 1, {joined.member_id: b"mine"}).value
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert setup.heartbeat(joined.member_id, 1) == ErrorCode.NONE


def test_only_the_leader_gets_the_members() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    setup.join(leader)
    response = setup.join(follower)
    assert response.value.members == []
    assert response.value.leader == leader


def test_member_ids_are_made_of_the_clients_name() -> None:
    assert Setup().join(client_id="app").value.member_id.startswith("app-")


# The member id requirement.


def test_from_version_4_a_member_id_is_required() -> None:
    setup = Setup()
    rejected = setup.join(version=4).value
    assert rejected.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert setup.group().state is GroupState.EMPTY
    joined = setup.join(rejected.member_id, version=4).value
    assert (joined.error_code, joined.member_id) == (ErrorCode.NONE, rejected.member_id)


def test_a_pending_member_id_runs_out_with_its_session() -> None:
    setup = Setup()
    rejected = setup.join(version=4, session_timeout_ms=10_000).value
    setup.timer.advance(9_999)
    assert rejected.member_id in setup.group().pending_members
    setup.timer.advance(1)
    late = setup.join(rejected.member_id, version=4).value
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_pending_members() -> None:
    setup = Setup()
    (leader,) = setup.stable_group()
    pending = setup.join(version=4).value.member_id
    rejoined = setup.join(leader)
    assert rejoined.is_pending
    setup.join(pending, version=4)
    assert rejoined.value.generation_id == 2
    assert len(rejoined.value.members) == 2


def test_a_pending_member_that_leaves_is_waited_for_no_longer() -> None:
    setup = Setup()
    (leader,) = setup.stable_group()
    pending = setup.join(version=4).value.member_id
    rejoined = setup.join(leader)
    assert setup.leave((pending, None)) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert rejoined.value.generation_id == 2


def test_a_pending_member_with_an_instance_id_is_nonsense() -> None:
    setup = Setup()
    pending = setup.join(version=5).value.member_id
    response = setup.join(pending, instance_id="i", version=5)
    assert response.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


# Mistakes in JoinGroup.


def test_an_empty_group_id_cannot_be_joined() -> None:
    assert Setup().join(group_id="").value.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("session_timeout_ms", [-1, 0, 5_999, 1_800_001])
def test_session_timeouts_have_bounds(session_timeout_ms: int) -> None:
    response = Setup().join(session_timeout_ms=session_timeout_ms)
    assert response.value.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_bounds_are_valid(session_timeout_ms: int) -> None:
    assert Setup().join(session_timeout_ms=session_timeout_ms).value.error_code == ErrorCode.NONE


def test_a_group_that_is_deleted_serves_no_member() -> None:
    setup = Setup()
    (leader,) = setup.stable_group()
    setup.group().transition_to(GroupState.DEAD, 0)
    expected = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert setup.join(leader).value.error_code == expected
    assert setup.sync(leader, 1).value.error_code == expected
    assert setup.heartbeat(leader, 1) == expected
    assert setup.leave((leader, None)) == (expected, [])


def test_a_member_of_an_empty_group_is_unknown() -> None:
    """It cannot be there; as in Kafka, it is not believed either."""
    setup = Setup()
    (leader,) = setup.stable_group()
    setup.group().state = GroupState.EMPTY
    assert setup.join(leader).value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert setup.sync(leader, 1).value.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_rejoins_takes_over_its_settings() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    changed = (("range", b"new"),)
    setup.join(
        follower,
        protocols=changed,
        session_timeout_ms=20_000,
        rebalance_timeout_ms=70_000,
        reason="more topics",
    )
    member = setup.group().members[follower]
    assert (member.protocols, member.session_timeout_ms) == (changed, 20_000)
    assert setup.group().rebalance_timeout_ms == 70_000
    events = setup.coordinator.events.of(GROUP)
    rejoined = [
        (each.kind, each.member_id, each.reason) for each in events if each.kind == "rejoined"
    ]
    assert rejoined[-1] == ("rejoined", follower, "more topics")
    assert setup.join(leader).value.error_code == ErrorCode.NONE


def test_an_unknown_member_makes_no_group() -> None:
    setup = Setup()
    assert setup.join("absent").value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert setup.coordinator.partitions.find(GROUP) is None


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", (("range", b""),)), ("consumer", ()), ("consumer", (("a", b""), ("a", b"")))],
)
def test_a_group_needs_a_protocol(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    response = Setup().join(protocol_type=protocol_type, protocols=protocols)
    assert response.value.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", (("range", b""),)), ("consumer", (("other", b""),))],
)
def test_members_need_something_in_common(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    setup = Setup()
    setup.stable_group()
    response = setup.join(protocol_type=protocol_type, protocols=protocols)
    assert response.value.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    setup = Setup()
    first = setup.join(protocols=(("a", b"1a"), ("b", b"1b"), ("x", b""))).value.member_id
    setup.sync(first, 1)
    second = setup.join(protocols=(("x2", b""), ("b", b"2b"), ("a", b"2a")))
    third = setup.join(protocols=(("b", b"3b"), ("a", b"3a")))
    response = setup.join(first, protocols=(("a", b"1a"), ("b", b"1b"), ("x", b""))).value
    assert response.protocol_name == "b"
    assert {member.metadata for member in response.members} == {b"1b", b"2b", b"3b"}
    assert second.value.protocol_name == third.value.protocol_name == "b"


# The limit of members.


def test_a_full_group_turns_new_members_away() -> None:
    setup = Setup(group_max_size=2)
    first, second = setup.stable_group(2)
    response = setup.join()
    assert response.value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert response.value.member_id == ""
    assert set(setup.group().members) == {first, second}
    assert setup.group().state is GroupState.STABLE


def test_members_of_a_full_group_may_join_again() -> None:
    setup = Setup(group_max_size=2)
    first, second = setup.stable_group(2)
    again = setup.join(first)
    assert setup.join(second).value.error_code == ErrorCode.NONE
    assert again.value.error_code == ErrorCode.NONE


def test_while_preparing_those_count_who_have_joined() -> None:
    setup = Setup(group_max_size=2)
    first, second = setup.stable_group(2)
    setup.leave((second, None))
    newcomers = [setup.join(), setup.join()]
    late = setup.join(first)
    assert late.value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [newcomer.value.error_code for newcomer in newcomers] == [0, 0]


def test_a_loaded_group_that_is_too_big_rebalances() -> None:
    log = Setup()
    members = log.stable_group(3)
    setup = Setup(log.log, group_max_size=2)
    assert setup.group().state is GroupState.PREPARING_REBALANCE
    responses = [setup.join(member) for member in members]
    assert responses[2].value.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [response.value.error_code for response in responses[:2]] == [0, 0]


# Joining again.


def test_before_the_sync_an_unchanged_member_gets_its_response_again() -> None:
    setup = Setup()
    joined = setup.join().value
    again = setup.join(joined.member_id).value
    assert (again.generation_id, again.leader) == (1, joined.member_id)
    assert len(again.members) == 1


def test_before_the_sync_a_changed_member_rebalances() -> None:
    setup = Setup()
    joined = setup.join().value
    changed = setup.join(joined.member_id, protocols=(("other", b""),)).value
    assert changed.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    changed = setup.join(joined.member_id, protocols=(("range", b"new"),)).value
    assert changed.generation_id == 2


def test_a_stable_groups_follower_gets_its_response_again_and_the_leader_rebalances() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    assert setup.join(follower).value.generation_id == generation
    assert setup.group().state is GroupState.STABLE
    assert setup.join(leader).is_pending
    assert setup.group().state is GroupState.PREPARING_REBALANCE


def test_a_changed_follower_rebalances_a_stable_group() -> None:
    setup = Setup()
    _, follower = setup.stable_group(2)
    assert setup.join(follower, protocols=(("range", b"new"),)).is_pending


def test_a_second_request_of_a_waiting_member_completes_the_first() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    first = setup.join(leader)
    second = setup.join(leader)
    assert first.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    setup.join(follower)
    assert second.value.error_code == ErrorCode.NONE


# SyncGroup.


def test_followers_wait_for_the_leader() -> None:
    setup = Setup()
    first = setup.join().value.member_id
    setup.sync(first, 1)
    joining = setup.join()
    setup.join(first)
    second = joining.value.member_id
    waiting = setup.sync(second, 2)
    assert waiting.is_pending
    assert setup.heartbeat(second, 2) == ErrorCode.NONE
    leading = setup.sync(first, 2, {first: b"1", second: b"2"})
    assert (leading.value.assignment, waiting.value.assignment) == (b"1", b"2")
    assert setup.sync(second, 2).value.assignment == b"2"


def test_the_sync_response_waits_for_the_record() -> None:
    setup = Setup()
    member = setup.join().value.member_id
    setup.log.hold = True
    response = setup.sync(member, 1, {member: b"x"})
    assert response.is_pending
    assert setup.group().state is GroupState.COMPLETING_REBALANCE
    setup.log.commit_all()
    assert response.value.assignment == b"x"
    assert setup.group().state is GroupState.STABLE


def test_members_the_leader_forgot_get_nothing_to_do() -> None:
    setup = Setup()
    member = setup.join().value.member_id
    assert setup.sync(member, 1, {"someone": b"x"}).value.assignment == b""


@pytest.mark.parametrize(
    ("error", "responded"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_an_assignment_that_cannot_be_stored_starts_over(error: int, responded: int) -> None:
    setup = Setup()
    member = setup.join().value.member_id
    setup.log.next_error = error
    assert setup.sync(member, 1, {member: b"x"}).value.error_code == responded
    assert setup.group().state is GroupState.PREPARING_REBALANCE
    assert setup.join(member).value.generation_id == 2


def test_a_join_while_the_assignment_is_stored_rebalances() -> None:
    setup = Setup()
    first = setup.join().value.member_id
    setup.log.hold = True
    syncing = setup.sync(first, 1, {first: b"x"})
    joining = setup.join()
    assert syncing.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    setup.log.commit_all()
    assert setup.group().state is GroupState.PREPARING_REBALANCE
    setup.join(first)
    assert joining.value.generation_id == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"member_id": "absent"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_mistakes_in_sync(change: dict[str, object], expected: int) -> None:
    setup = Setup()
    member = setup.join().value.member_id
    arguments: dict[str, object] = {"member_id": member, "generation_id": 1, **change}
    response = setup.sync(**arguments)  # type: ignore[arg-type]  # a table of arguments
    assert response.value.error_code == expected


def test_sync_during_a_rebalance_sends_the_member_back_to_join() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2)
    setup.join(leader)
    generation = setup.group().generation_id
    assert setup.sync(leader, generation).value.error_code == ErrorCode.REBALANCE_IN_PROGRESS


# Heartbeat and LeaveGroup.


def test_heartbeats_tell_of_a_rebalance() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    assert setup.heartbeat(follower, generation) == ErrorCode.NONE
    assert setup.heartbeat(follower, generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert setup.heartbeat("absent", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert setup.heartbeat(follower, generation, "i") == ErrorCode.UNKNOWN_MEMBER_ID
    setup.join(leader)
    assert setup.heartbeat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert setup.heartbeat(follower, generation, group_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert setup.heartbeat(follower, generation, group_id="") == ErrorCode.INVALID_GROUP_ID


def test_a_member_that_leaves_starts_a_rebalance() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    assert setup.leave((leader, None)) == (ErrorCode.NONE, [ErrorCode.NONE])
    response = setup.join(follower).value
    assert response.leader == follower
    assert [member.member_id for member in response.members] == [follower]


def test_the_last_member_leaves_an_empty_group_with_its_offsets() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 5}, member, 1)
    setup.leave((member, None))
    assert setup.group().state is GroupState.EMPTY
    assert setup.group().generation_id == 2
    assert setup.offset() == 5
    assert Setup(setup.log).group().generation_id == 2


def test_one_batch_of_leaves_may_fail_in_part() -> None:
    setup = Setup()
    member, _ = setup.stable_group(2)
    assert setup.leave((member, None), ("absent", None), ("", None), (member, None)) == (
        ErrorCode.NONE,
        [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ],
    )


def test_leaving_a_group_that_is_not_there() -> None:
    setup = Setup()
    assert setup.leave(("m", None), group_id="x") == (
        ErrorCode.NONE,
        [ErrorCode.UNKNOWN_MEMBER_ID],
    )
    assert setup.leave(("m", None), group_id="") == (ErrorCode.INVALID_GROUP_ID, [])


def test_a_member_that_leaves_while_others_wait_lets_them_go_on() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    waiting = setup.join(leader)
    setup.leave((follower, None))
    assert waiting.value.error_code == ErrorCode.NONE


def test_the_pending_request_of_a_leaving_member_is_completed() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    waiting = setup.join(leader)
    setup.leave((leader, None))
    assert waiting.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    generation = setup.group().generation_id
    rejoined = setup.join(follower).value
    assert rejoined.generation_id == generation + 1
    syncing = setup.sync("x" if rejoined.leader == follower else follower, 9)
    assert not syncing.is_pending
