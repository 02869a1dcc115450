"""Changes of large consumer groups, which are computed in turns: what happens in the pauses."""

from __future__ import annotations

import pytest

from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.broker.groups.consumer.records import GroupEpoch, MemberSubscription
from ottla.broker.groups.log import group_writer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.pace import steps_per_turn
from tests.unit.broker.groups.consumer_helpers import Catalog, ConsumerSetup
from tests.unit.broker.groups.helpers import GROUP, PendingResponse

MEMBERS, PARTITIONS = 40, 100
OTHER = "other"

pytestmark = pytest.mark.usefixtures("short_turns")
Pending = PendingResponse[ConsumerGroupHeartbeatResponse]


@pytest.fixture
def setup() -> ConsumerSetup:
    """A group of many members without an assignment."""
    setup = ConsumerSetup(catalog=Catalog(t=PARTITIONS))
    fill(setup, GROUP)
    return setup


def fill(setup: ConsumerSetup, group_id: str) -> None:
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    partition.replay_consumer_group(GroupEpoch(group_id, 1))
    for number in range(MEMBERS):
        member = ConsumerMember(f"member-{number}", topics=frozenset({"t"}))
        partition.replay_consumer_group(MemberSubscription(group_id, member.member_id, member))


def join(setup: ConsumerSetup, member_id: str = "new") -> Pending:
    return setup.beat(member_id, 0, topics=["t"], owned={}, timeout_ms=30_000)


def pause(setup: ConsumerSetup, slices: int = 3) -> None:
    """Continues to the middle of the computation."""
    for _ in range(slices):
        setup.deferred.pop(0)()
    assert setup.deferred


def test_a_large_group_is_assigned_in_turns(setup: ConsumerSetup) -> None:
    response = join(setup)
    assert response.is_pending
    pause(setup)
    assert setup.log.appends == 0
    assert setup.consumer_group.epoch == 1
    setup.run_deferred()
    assert response.value.member_epoch == setup.consumer_group.assignment_epoch == 2
    targets = setup.consumer_group.targets
    assert len(targets) == MEMBERS + 1
    indexes = [index for target in targets.values() for found in target.values() for index in found]
    assert sorted(indexes) == list(range(PARTITIONS))


def test_requests_of_the_group_wait_in_their_order(setup: ConsumerSetup) -> None:
    first, second = join(setup), join(setup, "newer")
    leaving = setup.beat("member-0", -1)
    pause(setup)
    assert first.is_pending
    assert second.is_pending
    assert leaving.is_pending
    setup.run_deferred()
    assert first.value.member_epoch == 2
    assert second.value.member_epoch == 3
    assert leaving.value.error_code == ErrorCode.NONE
    assert setup.consumer_group.epoch == 4
    assert "member-0" not in setup.consumer_group.members


def test_another_group_does_not_wait(setup: ConsumerSetup) -> None:
    response = join(setup)
    pause(setup)
    other = setup.beat("x", 0, topics=["u"], owned={}, timeout_ms=30_000, group_id=OTHER)
    assert other.value.member_epoch == 1
    consumers = setup.coordinator.consumers
    assert consumers is not None
    assert run_at_once(consumers.admin.describe(GROUP)).group_epoch == 1
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NONE


def test_large_groups_take_turns(setup: ConsumerSetup) -> None:
    fill(setup, OTHER)
    responses = [
        setup.beat("x", 0, topics=["t"], owned={}, timeout_ms=30_000, group_id=group_id)
        for group_id in (GROUP, OTHER)
    ]
    done_at = []
    slices = 0
    while setup.deferred:
        setup.deferred.pop(0)()
        slices += 1
        if sum(not response.is_pending for response in responses) > len(done_at):
            done_at.append(slices)
    assert done_at[0] > 0.9 * done_at[1]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_coordinator_that_resigns_in_a_pause_appends_nothing(
    setup: ConsumerSetup, is_back: bool
) -> None:
    first, second = join(setup), join(setup, "newer")
    pause(setup)
    setup.coordinator.on_resigned(0, 1)
    if is_back:
        setup.coordinator.on_elected(0, 2)
        setup.deferred.pop()()  # loads: without the group, which the log does not have
        assert setup.coordinator.partitions.get_active(0) is not None
    setup.run_deferred()
    assert first.value.error_code == ErrorCode.NOT_COORDINATOR
    if is_back:
        assert second.value.member_epoch == 1  # the first member of a new group
        assert list(setup.consumer_group.members) == ["newer"]
    else:
        assert second.value.error_code == ErrorCode.NOT_COORDINATOR
        assert setup.log.appends == 0


def test_a_coordinator_that_stops_in_a_pause_responds(setup: ConsumerSetup) -> None:
    response = join(setup)
    pause(setup)
    setup.coordinator.shutdown()
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NOT_COORDINATOR
    assert setup.log.appends == 0


def test_a_member_that_waits_for_the_computation_does_not_expire(setup: ConsumerSetup) -> None:
    join(setup)
    setup.run_deferred()
    epoch = setup.consumer_group.epoch
    join(setup, "newer")
    waiting = setup.beat("new", epoch)
    pause(setup, 1)
    setup.timer.advance(setup.settings.consumer_session_timeout_ms(GROUP) + 1)
    setup.run_deferred()
    assert waiting.value.error_code == ErrorCode.NONE
    assert "new" in setup.consumer_group.members


def test_a_session_that_expires_while_too_many_requests_wait_ends_later(
    setup: ConsumerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that fails ends the sessions of all members of a group in the same moment."""
    join(setup)
    setup.run_deferred()
    monkeypatch.setattr(group_writer, "MAX_WAITING", 1)
    join(setup, "newer")
    join(setup, "newest")
    setup.timer.advance(setup.settings.consumer_session_timeout_ms(GROUP) + 1)
    assert "new" in setup.consumer_group.members
    setup.run_deferred()
    setup.timer.advance(1_000)
    setup.run_deferred()
    assert "new" not in setup.consumer_group.members


def test_a_group_is_not_deleted_in_a_pause(setup: ConsumerSetup) -> None:
    response = join(setup)
    pause(setup)
    codes: dict[str, int] = {}
    setup.coordinator.admin.delete_groups([GROUP], codes.update)
    assert codes == {GROUP: ErrorCode.NON_EMPTY_GROUP}
    setup.run_deferred()
    assert response.value.error_code == ErrorCode.NONE


def test_a_topic_that_is_created_in_a_pause_is_found_by_the_next_heartbeat(
    setup: ConsumerSetup,
) -> None:
    join(setup)
    pause(setup)
    setup.catalog.grow("t", PARTITIONS + 1)
    setup.run_deferred()
    epoch = setup.consumer_group.epoch
    setup.beat("new", epoch)
    setup.run_deferred()
    assert setup.consumer_group.epoch == epoch + 1
    assert setup.consumer_group.topics["t"].partition_count == PARTITIONS + 1


def test_the_log_has_what_memory_has(setup: ConsumerSetup) -> None:
    log = setup.log = MemoryLog()
    setup = ConsumerSetup(log, Catalog(t=PARTITIONS))
    for number in range(30):
        join(setup, f"member-{number}")
        setup.run_deferred()
    again = ConsumerSetup(log, setup.catalog)
    assert again.consumer_group.targets == setup.consumer_group.targets
    assert again.consumer_group.members == setup.consumer_group.members


MANY = [TopicPartition("many", index) for index in range(3_000)]
MAX_BATCH_BYTES = 100_000  # far below a usual max.message.bytes


def group_with_many_offsets() -> ConsumerSetup:
    setup = ConsumerSetup()
    with steps_per_turn(10_000):
        setup.enter("a")
        setup.commit(dict.fromkeys(MANY, 1), "a", 1, version=9)
        setup.beat("a", -1)
    assert setup.consumer_group.is_empty
    return setup


def delete(setup: ConsumerSetup) -> list[dict[str, int]]:
    results: list[dict[str, int]] = []
    setup.coordinator.admin.delete_groups([GROUP], results.append)
    return results


def test_a_group_with_many_offsets_is_deleted_in_batches() -> None:
    """One of all tombstones would be too large, and the group could not be deleted."""
    setup = group_with_many_offsets()
    known = len(setup.log.batches[0])
    results = delete(setup)
    assert not results
    joining = setup.beat("b", 0, topics=["t"], owned={}, timeout_ms=1)
    assert joining.is_pending  # until the group is deleted
    setup.run_deferred()
    assert results == [{GROUP: ErrorCode.NONE}]
    assert joining.value.member_epoch == 1
    assert setup.fetch() == {}
    assert ConsumerSetup(setup.log, setup.catalog).fetch() == {}
    assert max(map(len, setup.log.batches[0][known:])) < MAX_BATCH_BYTES


@pytest.mark.parametrize("resigns", [False, True])
def test_a_part_of_the_offsets_cannot_be_deleted(resigns: bool) -> None:
    setup = group_with_many_offsets()
    results = delete(setup)
    code = ErrorCode.NOT_COORDINATOR if resigns else ErrorCode.COORDINATOR_NOT_AVAILABLE
    if resigns:  # another coordinator may have changed the group when it is loaded again
        setup.coordinator.on_resigned(0, 1)
        setup.coordinator.on_elected(0, 2)
        while not setup.coordinator.partitions.active:
            setup.deferred.pop()()  # loads, before the deletion continues
    else:
        setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.run_deferred()
    assert results == [{GROUP: code}]
    assert 0 < len(setup.fetch()) < len(MANY)
    again = delete(setup)
    setup.run_deferred()
    assert again == [{GROUP: ErrorCode.NONE}]
    assert setup.fetch() == {}
