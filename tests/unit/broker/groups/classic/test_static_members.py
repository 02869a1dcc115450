"""Members with an instance id keep their place over a restart (KIP-345)."""

import pytest

from ottla.broker.groups.classic.group import GroupState
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.groups.helpers import SUBSCRIPTION, T0, Setup


def test_a_static_member_needs_no_second_join() -> None:
    joined = Setup().join(instance_id="i", version=5).value
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("i-")
    assert joined.members[0].group_instance_id == "i"


def test_a_restarted_member_gets_its_assignment_without_a_rebalance() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2, instances=True)
    generation = setup.group().generation_id
    back = setup.join(instance_id="i1", version=7).value
    assert back.error_code == ErrorCode.NONE
    assert back.member_id != follower
    assert (back.generation_id, back.leader, back.members) == (generation, leader, [])
    assert setup.group().state is GroupState.STABLE
    assert setup.sync(back.member_id, generation).value.assignment == follower.encode()


@pytest.mark.parametrize("version", [5, 8])
def test_a_restarted_leader_takes_itself_for_a_follower_in_old_versions(version: int) -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2, instances=True)
    back = setup.join(instance_id="i0", version=version).value
    assert (back.leader, back.skip_assignment, back.members) == (leader, False, [])
    assert setup.group().leader_id == back.member_id


def test_a_restarted_leader_gets_skip_assignment() -> None:
    setup = Setup()
    setup.stable_group(2, instances=True)
    back = setup.join(instance_id="i0", version=9).value
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2


def test_a_restarted_follower_skips_nothing() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2, instances=True)
    back = setup.join(instance_id="i1", version=9).value
    assert (back.leader, back.skip_assignment, back.members) == (leader, False, [])


def test_the_new_id_is_stored_before_it_is_given_out() -> None:
    setup = Setup()
    setup.stable_group(1, instances=True)
    setup.log.hold = True
    back = setup.join(instance_id="i0", version=9)
    assert back.is_pending
    setup.log.commit_all()
    again = Setup(setup.log)
    assert again.group().static_members == {"i0": back.value.member_id}


def test_a_new_id_that_cannot_be_stored_is_taken_back() -> None:
    setup = Setup()
    (leader,) = setup.stable_group(1, instances=True)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    back = setup.join(
        instance_id="i0", version=9, protocols=(("range", b"new"),), session_timeout_ms=20_000
    ).value
    assert back.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert back.member_id == ""
    assert setup.heartbeat(leader, 1, "i0") == ErrorCode.NONE
    member = setup.group().members[leader]
    assert member.protocols == (("range", SUBSCRIPTION),)
    assert member.session_timeout_ms == 10_000


def test_requests_with_the_old_id_are_fenced() -> None:
    setup = Setup()
    (old,) = setup.stable_group(1, instances=True)
    setup.join(instance_id="i0", version=9)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert setup.heartbeat(old, 1, "i0") == fenced
    assert setup.join(old, instance_id="i0", version=9).value.error_code == fenced
    assert setup.sync(old, 1, instance_id="i0").value.error_code == fenced
    assert setup.commit({T0: 1}, old, 1, instance_id="i0").value == {T0: fenced}
    assert setup.leave((old, "i0")) == (ErrorCode.NONE, [fenced])
    assert setup.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_pending_request_of_the_old_id_is_fenced() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2, instances=True)
    waiting = setup.join(leader, instance_id="i0")
    back = setup.join(instance_id="i0")
    assert waiting.value.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert waiting.value.member_id == leader
    assert back.is_pending


def test_a_restart_before_the_assignment_starts_over() -> None:
    setup = Setup()
    first = setup.join(instance_id="i0").value
    waiting = setup.join(instance_id="i0")
    assert waiting.value.generation_id == first.generation_id + 1


def test_a_restart_while_others_wait_for_the_assignment_starts_over() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2, instances=True)
    setup.join(leader, instance_id="i0")
    setup.join(follower, instance_id="i1")
    generation = setup.group().generation_id
    waiting = setup.sync(follower, generation, instance_id="i1")
    setup.join(instance_id="i1")
    assert waiting.value.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert setup.group().state is GroupState.PREPARING_REBALANCE


def test_a_restart_with_another_favourite_protocol_rebalances() -> None:
    setup = Setup()
    both = (("range", SUBSCRIPTION), ("sticky", b""))
    member = setup.join(instance_id="i", protocols=both).value.member_id
    setup.sync(member, 1, {member: b"x"})
    turned = setup.join(instance_id="i", protocols=both[::-1]).value
    assert (turned.generation_id, turned.protocol_name) == (2, "sticky")


def test_a_rebalance_that_begins_while_the_new_id_is_stored_continues_with_it() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2, instances=True)
    generation = setup.group().generation_id
    setup.log.hold = True
    back = setup.join(instance_id="i1", version=9)
    rejoined = setup.join(leader, instance_id="i0")
    setup.log.commit_all()
    assert rejoined.value.generation_id == back.value.generation_id == generation + 1


def test_an_administrator_removes_an_instance() -> None:
    setup = Setup()
    setup.stable_group(2, instances=True)
    assert setup.leave(("", "i1")) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert setup.leave(("", "i1")) == (ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID])
    assert list(setup.group().static_members) == ["i0"]


def test_static_members_survive_a_reload() -> None:
    before = Setup()
    leader, follower = before.stable_group(2, instances=True)
    setup = Setup(before.log)
    assert setup.group().static_members == {"i0": leader, "i1": follower}
    back = setup.join(instance_id="i1", version=9).value
    assert back.generation_id == before.group().generation_id
    assert setup.sync(back.member_id, back.generation_id).value.assignment == follower.encode()


def test_an_expired_static_member_may_come_back_as_a_new_one() -> None:
    setup = Setup()
    setup.stable_group(1, instances=True)
    setup.timer.advance(10_000)
    assert setup.group().static_members == {}
    assert setup.join(instance_id="i0").value.error_code == ErrorCode.NONE
