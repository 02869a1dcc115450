"""Large groups are converted between the protocols in turns: what happens in the pauses."""

from __future__ import annotations

import pytest

from ottla.broker.groups.consumer.consumer_group import ConsumerGroupState
from ottla.protocol.consumer_protocol import Assignment, encode_assignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.consumer_helpers import Catalog, ConsumerSetup
from tests.unit.broker.groups.helpers import T0, PendingResponse

MEMBERS = 50
SESSION_MS = 10_000
DELAY_MS = 3_000

pytestmark = pytest.mark.usefixtures("short_turns")
Pending = PendingResponse[ConsumerGroupHeartbeatResponse]


def classic_group() -> tuple[ConsumerSetup, list[str]]:
    """A stable one of many members."""
    setup = ConsumerSetup(
        catalog=Catalog(t=MEMBERS),
        group_initial_rebalance_delay_ms=DELAY_MS,
        group_consumer_migration_policy="bidirectional",
    )
    joins = [setup.join() for _ in range(MEMBERS)]
    setup.timer.advance(2 * DELAY_MS)
    setup.run_deferred()
    ids = [join.value.member_id for join in joins]
    for member_id in ids[1:]:
        setup.sync(member_id, 1)
    setup.sync(ids[0], 1, dict.fromkeys(ids, b""))
    setup.run_deferred()
    assert setup.group().state.value == "Stable"
    setup.commit({T0: 7}, ids[0], 1)
    return setup, ids


def upgrading() -> tuple[ConsumerSetup, list[str], Pending]:
    """In the middle of the computation."""
    setup, ids = classic_group()
    response = setup.beat("new", 0, topics=["t"], owned={}, timeout_ms=30_000)
    pause(setup, response)
    return setup, ids, response


def pause(setup: ConsumerSetup, response: Pending, slices: int = 10) -> None:
    for _ in range(slices):
        setup.deferred.pop(0)()
    assert setup.deferred
    assert response.is_pending


def assert_upgraded(setup: ConsumerSetup, response: Pending, ids: list[str]) -> None:
    assert response.value.error_code == ErrorCode.NONE
    assert set(setup.consumer_group.members) == {*ids, "new"}
    assert setup.offset() == 7
    again = ConsumerSetup(setup.log, setup.catalog)
    assert again.consumer_group.members == setup.consumer_group.members
    assert again.consumer_group.targets == setup.consumer_group.targets
    assert again.consumer_group.owners == setup.consumer_group.owners
    assert again.consumer_group.topics == setup.consumer_group.topics
    assert again.consumer_group.epoch == setup.consumer_group.epoch
    assert again.offset() == 7


def test_a_large_group_is_upgraded_in_turns() -> None:
    setup, ids, response = upgrading()
    assert setup.group().state.value == "Stable"
    assert setup.heartbeat(ids[0], 1) == ErrorCode.NONE
    setup.run_deferred()
    assert_upgraded(setup, response, ids)
    setup.timer.advance(SESSION_MS + 1)  # those that have no heartbeat
    setup.run_deferred()
    assert list(setup.consumer_group.members) == ["new"]


def test_a_member_that_expires_in_a_pause_is_not_in_the_upgraded_group() -> None:
    setup, ids = classic_group()
    setup.timer.advance(SESSION_MS // 2)
    for member_id in ids[1:]:
        setup.heartbeat(member_id, 1)
    response = setup.beat("new", 0, topics=["t"], owned={}, timeout_ms=30_000)
    pause(setup, response)
    setup.timer.advance(SESSION_MS // 2)
    assert ids[0] not in setup.group().members
    setup.run_deferred()
    assert_upgraded(setup, response, ids[1:])


def test_a_group_that_changes_again_and_again_is_upgraded() -> None:
    setup, ids, response = upgrading()
    first = setup.group().members[ids[0]]
    slices = 0
    while response.is_pending:
        first.assignment = encode_assignment(Assignment([TopicPartition("t", slices % MEMBERS)]))
        setup.deferred.pop(0)()
        slices += 1
    undisturbed = classic_group()[0]
    undisturbed.beat("new", 0, topics=["t"], owned={}, timeout_ms=30_000)
    assert slices > 2 * undisturbed_slices(undisturbed)
    setup.run_deferred()
    assert_upgraded(setup, response, ids)


def undisturbed_slices(setup: ConsumerSetup) -> int:
    slices = 0
    while setup.deferred:
        setup.deferred.pop(0)()
        slices += 1
    return slices


def test_requests_of_its_members_wait_for_the_upgrade() -> None:
    setup, ids, response = upgrading()
    join = setup.join(ids[0])
    sync = setup.sync(ids[1], 1)
    assert join.is_pending
    assert sync.is_pending
    setup.run_deferred()
    assert_upgraded(setup, response, ids)
    assert join.value.generation_id == setup.consumer_group.epoch
    assert sync.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("is_back", [False, True])
def test_a_coordinator_that_resigns_in_a_pause_upgrades_nothing(is_back: bool) -> None:
    setup, ids, response = upgrading()
    appends = setup.log.appends
    setup.coordinator.on_resigned(0, 1)
    if is_back:
        setup.coordinator.on_elected(0, 2)
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NOT_COORDINATOR
    assert setup.log.appends == appends
    if is_back:
        assert list(setup.group().members) == ids
        assert setup.heartbeat(ids[-1], 1) == ErrorCode.NONE


def test_an_upgrade_that_cannot_be_stored_leaves_a_classic_group() -> None:
    setup, ids, response = upgrading()
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(setup.group().members) == ids
    assert setup.heartbeat(ids[-1], 1) == ErrorCode.NONE
    setup.timer.advance(SESSION_MS + 1)
    setup.run_deferred()
    assert setup.group().is_empty


def downgrading() -> tuple[ConsumerSetup, list[str], Pending]:
    setup, ids, response = upgrading()
    setup.run_deferred()
    assert_upgraded(setup, response, ids)
    leaving = setup.beat("new", -1)
    pause(setup, leaving)
    return setup, ids, leaving


def test_a_large_group_is_downgraded_in_turns() -> None:
    setup, ids, response = downgrading()
    assert setup.consumer_group.state is not ConsumerGroupState.EMPTY
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NONE
    assert list(setup.group().members) == ids
    assert setup.group().state.value == "PreparingRebalance"
    assert setup.offset() == 7
    again = ConsumerSetup(setup.log, setup.catalog)
    assert list(again.group().members) == ids
    assert again.offset() == 7
    rejoined = [setup.join(member_id) for member_id in ids]
    setup.run_deferred()
    assert {join.value.error_code for join in rejoined} == {0}


def test_a_coordinator_that_resigns_in_a_pause_downgrades_nothing() -> None:
    setup, ids, response = downgrading()
    appends = setup.log.appends
    setup.coordinator.on_resigned(0, 1)
    setup.coordinator.on_elected(0, 2)
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NOT_COORDINATOR
    assert setup.log.appends == appends
    assert set(setup.consumer_group.members) == {*ids, "new"}


def test_a_member_that_joins_in_a_pause_waits_for_the_downgrade() -> None:
    setup, ids, response = downgrading()
    joining = setup.beat("newer", 0, topics=["t"], owned={}, timeout_ms=30_000)
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NONE
    assert joining.value.error_code == ErrorCode.NONE  # upgrades it again
    assert set(setup.consumer_group.members) == {*ids, "newer"}


def test_a_group_that_is_upgraded_again_has_new_sessions() -> None:
    setup, ids, _ = downgrading()
    setup.run_deferred()
    setup.timer.advance(SESSION_MS - 1)
    setup.beat("newer", 0, topics=["t"], owned={}, timeout_ms=30_000)
    setup.run_deferred()
    setup.timer.advance(SESSION_MS - 1)
    setup.run_deferred()
    assert set(setup.consumer_group.members) == {*ids, "newer"}
