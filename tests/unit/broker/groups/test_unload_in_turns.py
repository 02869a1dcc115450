"""A partition with many groups is unloaded, and their sessions are started, in turns."""

from __future__ import annotations

import pytest

from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.broker.groups.consumer.records import GroupEpoch, MemberSubscription, encode_record
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.records.builder import build_batch
from tests.doubles.coordinator_log import MemoryLog
from tests.unit.broker.groups.conftest import STEPS_PER_TURN
from tests.unit.broker.groups.consumer_helpers import ConsumerSetup
from tests.unit.broker.groups.helpers import GROUP, PendingResponse, Setup

GROUPS = 3 * STEPS_PER_TURN
MEMBERS = 3 * STEPS_PER_TURN
SESSION_MS = 10_000

pytestmark = pytest.mark.usefixtures("short_turns")


def name(number: int) -> str:
    return f"group-{number}"


def load(setup: Setup) -> None:
    """Load the partition before other work that was deferred."""
    while not setup.coordinator.partitions.active:
        setup.deferred.pop()()


@pytest.fixture
def stored() -> tuple[Setup, list[str]]:
    """Groups with one member each, in the log; the ids of the members."""
    setup = Setup()
    members = []
    for number in range(GROUPS):
        member_id = setup.join(group_id=name(number)).value.member_id
        setup.sync(member_id, 1, {member_id: b"a"}, group_id=name(number))
        members.append(member_id)
    setup.coordinator.shutdown()
    return setup, members


def waiting() -> tuple[Setup, list[PendingResponse[JoinGroupResponse]]]:
    """A coordinator of groups that wait for more members."""
    setup = Setup(group_initial_rebalance_delay_ms=3_000)
    return setup, [setup.join(group_id=name(number)) for number in range(GROUPS)]


def done(responses: list[PendingResponse[JoinGroupResponse]]) -> int:
    return sum(not response.is_pending for response in responses)


def test_pending_requests_get_responses_in_turns() -> None:
    setup, responses = waiting()
    setup.coordinator.on_resigned(0, 1)
    assert 0 < done(responses) < GROUPS
    assert setup.heartbeat("m", 1, group_id=name(0)) == ErrorCode.NOT_COORDINATOR
    setup.run_deferred()
    assert {response.value.error_code for response in responses} == {ErrorCode.NOT_COORDINATOR}


def test_timers_that_expire_in_a_pause_have_no_effect() -> None:
    setup, responses = waiting()
    setup.coordinator.on_resigned(0, 1)
    completed = done(responses)
    setup.timer.advance(10 * 60_000)
    assert done(responses) == completed
    setup.run_deferred()
    assert {response.value.error_code for response in responses} == {ErrorCode.NOT_COORDINATOR}
    assert setup.log.appends == 0


def test_a_coordinator_that_is_elected_again_in_a_pause_has_the_groups(
    stored: tuple[Setup, list[str]],
) -> None:
    setup = Setup(stored[0].log)
    setup.coordinator.on_resigned(0, 1)
    setup.coordinator.on_elected(0, 2)
    load(setup)  # before the others are released
    assert setup.deferred
    setup.run_deferred()
    for number, member_id in enumerate(stored[1]):
        assert setup.heartbeat(member_id, 1, group_id=name(number)) == ErrorCode.NONE
    setup.timer.advance(SESSION_MS + 1)
    assert all(group.is_empty for group in setup.coordinator.admin.all_groups())


def test_a_coordinator_that_resigns_before_all_sessions_have_started(
    stored: tuple[Setup, list[str]],
) -> None:
    setup = Setup(stored[0].log)
    setup.coordinator.on_resigned(0, 1)
    setup.run_deferred()
    appends = setup.log.appends
    setup.coordinator.on_elected(0, 2)
    load(setup)
    setup.coordinator.on_resigned(0, 3)
    setup.timer.advance(SESSION_MS + 1)
    setup.run_deferred()
    setup.timer.advance(SESSION_MS + 1)
    assert setup.log.appends == appends


def test_a_member_that_is_heard_of_before_its_session_starts(
    stored: tuple[Setup, list[str]],
) -> None:
    setup = Setup(stored[0].log)
    setup.coordinator.on_resigned(0, 1)
    setup.run_deferred()
    setup.coordinator.on_elected(0, 2)
    load(setup)
    last, other = stored[1][-1], stored[1][-2]
    assert setup.leave((other, None), group_id=name(GROUPS - 2)) == (0, [0])
    setup.timer.advance(SESSION_MS // 2)
    assert setup.heartbeat(last, 1, group_id=name(GROUPS - 1)) == ErrorCode.NONE
    setup.run_deferred()
    assert setup.group(name(GROUPS - 2)).is_empty
    setup.timer.advance(SESSION_MS // 2 + 1)
    assert setup.group(name(0)).is_empty
    assert not setup.group(name(GROUPS - 1)).is_empty
    setup.timer.advance(SESSION_MS // 2)
    assert setup.group(name(GROUPS - 1)).is_empty


def test_a_coordinator_that_stops_responds_at_once() -> None:
    setup, responses = waiting()
    setup.coordinator.shutdown()
    assert done(responses) == GROUPS


def consumer_group() -> ConsumerSetup:
    """A consumer group (KIP-848) of many members, whose sessions have started."""
    log = MemoryLog()
    records = [
        MemberSubscription(GROUP, f"m{number}", ConsumerMember(f"m{number}", topics=frozenset("t")))
        for number in range(MEMBERS)
    ]
    rows = [encode_record(record) for record in (GroupEpoch(GROUP, 1), *records)]
    log.append(0, build_batch([(0, key, value, None) for key, value in rows]), lambda *_: None)
    return ConsumerSetup(log)


def test_timers_of_a_consumer_group_are_cancelled_in_turns() -> None:
    setup = consumer_group()
    session_ms = setup.settings.consumer_session_timeout_ms(GROUP)
    setup.coordinator.on_resigned(0, 1)
    assert setup.deferred
    appends = setup.log.appends
    assert setup.timer.advance(session_ms + 1) > 0  # of those that are not cancelled yet
    setup.run_deferred()
    assert setup.log.appends == appends


def test_a_consumer_group_that_is_loaded_again_in_a_pause_has_new_sessions() -> None:
    setup = consumer_group()
    session_ms = setup.settings.consumer_session_timeout_ms(GROUP)
    setup.timer.advance(session_ms - 10)
    setup.coordinator.on_resigned(0, 1)
    setup.coordinator.on_elected(0, 2)
    load(setup)  # before all timers are cancelled and all sessions have started
    assert setup.deferred
    setup.timer.advance(10)
    assert len(setup.consumer_group.members) == MEMBERS
    setup.run_deferred()
    assert setup.timer.advance(session_ms - 20) == 0
    assert len(setup.consumer_group.members) == MEMBERS
    setup.timer.advance(20)
    setup.run_deferred()
    assert setup.found is None or not setup.found.members


def test_members_of_a_consumer_group_that_leave_before_their_sessions_start() -> None:
    setup = consumer_group()
    setup.coordinator.on_resigned(0, 1)
    setup.run_deferred()
    setup.coordinator.on_elected(0, 2)
    load(setup)
    last = f"m{MEMBERS - 1}"
    leaving = setup.beat(last, -1)
    setup.run_deferred()
    assert leaving.value.error_code == ErrorCode.NONE
    setup.timer.advance(setup.settings.consumer_session_timeout_ms(GROUP))
    setup.run_deferred()
    events = [event.kind for event in setup.coordinator.events.of(GROUP) if event.member_id == last]
    assert "expired" not in events
