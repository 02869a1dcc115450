"""Describing, listing, deleting and expiring groups."""

from unittest.mock import Mock

import pytest

from ottla.broker.groups.admin import OFFSETS_PER_BATCH
from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.log.records import GroupKey, OffsetKey, read_key
from ottla.broker.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import LogClosed
from tests.unit.broker.groups.conftest import STEPS_PER_TURN
from tests.unit.broker.groups.helpers import GROUP, SUBSCRIPTION, T0, T1, Setup

U0 = TopicPartition("u", 0)
RETENTION_MS = GroupSettings().offsets_retention_ms


def delete(setup: Setup, *group_ids: str) -> dict[str, int]:
    results: list[dict[str, int]] = []
    setup.coordinator.admin.delete_groups(group_ids, results.append)
    setup.run_deferred()  # a group with many offsets is deleted in slices
    (result,) = results
    return result


def delete_offsets(
    setup: Setup, *partitions: TopicPartition, group_id: str = GROUP
) -> tuple[int, dict[TopicPartition, int]]:
    results: list[tuple[int, dict[TopicPartition, int]]] = []
    setup.coordinator.admin.delete_offsets(
        group_id, partitions, lambda error, found: results.append((error, found))
    )
    (result,) = results
    return result


def tombstones(setup: Setup) -> list[object]:
    return [read_key(record.key or b"") for record in setup.log.records(0) if record.value is None]


# Describe and list.


def test_a_stable_group_is_described_with_its_assignment() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    described = setup.coordinator.admin.describe(GROUP)
    assert (described.group_state, described.protocol_type) == ("Stable", "consumer")
    assert described.protocol_data == "range"
    (row,) = described.members
    assert (row.member_id, row.client_id, row.client_host) == (member, "client", "/127.0.0.1")
    assert (row.member_metadata, row.member_assignment) == (SUBSCRIPTION, member.encode())


def test_a_group_that_is_not_stable_is_described_without() -> None:
    setup = Setup()
    setup.join()
    described = setup.coordinator.admin.describe(GROUP)
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert [row.member_metadata for row in described.members] == [b""]


def test_an_unknown_group_is_dead() -> None:
    admin = Setup().coordinator.admin
    assert admin.describe("unknown").group_state == "Dead"
    assert admin.describe("").group_state == "Dead"


def test_a_group_elsewhere_is_not_described() -> None:
    setup = Setup()
    setup.coordinator.on_resigned(0, 1)
    described = setup.coordinator.admin.describe(GROUP)
    assert (described.error_code, described.group_state) == (ErrorCode.NOT_COORDINATOR, "")


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), {GROUP, "simple"}),
        (("stable",), (), {GROUP}),
        (("EMPTY", "nonsense"), (), {"simple"}),
        (("Dead",), (), set()),
        ((), ("Classic",), {GROUP, "simple"}),
        ((), ("consumer",), set()),
        (("Stable",), ("consumer", "classic"), {GROUP}),
    ],
)
def test_groups_are_listed_by_state_and_type(
    states: tuple[str, ...], types: tuple[str, ...], found: set[str]
) -> None:
    setup = Setup()
    setup.stable_group()
    setup.commit({T0: 1}, group_id="simple")
    error, groups = run_at_once(setup.coordinator.admin.list_groups(states, types))
    assert error == ErrorCode.NONE
    assert {group.group_id for group in groups} == found


def test_a_list_while_loading_has_the_loading_error() -> None:
    setup = Setup()
    setup.stable_group()
    setup.coordinator.on_elected(0, 1)
    error, groups = run_at_once(setup.coordinator.admin.list_groups())
    assert (error, groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


# Deleting groups.


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 1, T1: 2}, member, 1)
    setup.leave((member, None))
    assert delete(setup, GROUP) == {GROUP: ErrorCode.NONE}
    assert setup.coordinator.partitions.find(GROUP) is None
    assert tombstones(setup) == [OffsetKey(GROUP, T0), OffsetKey(GROUP, T1), GroupKey(GROUP)]
    again = Setup(setup.log)
    assert again.coordinator.partitions.find(GROUP) is None


def test_a_group_that_never_had_a_record_leaves_no_tombstone_of_its_own() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    assert delete(setup, GROUP) == {GROUP: ErrorCode.NONE}
    assert tombstones(setup) == [OffsetKey(GROUP, T0)]


def test_groups_in_use_and_unknown_groups_are_not_deleted() -> None:
    setup = Setup()
    setup.stable_group()
    assert delete(setup, GROUP, "unknown", "") == {
        GROUP: ErrorCode.NON_EMPTY_GROUP,
        "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
        "": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert setup.log.records(0)[-1].value is not None


def test_the_response_to_a_deletion_waits_for_its_commit() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.hold = True
    results: list[dict[str, int]] = []
    setup.coordinator.admin.delete_groups([GROUP], results.append)
    assert not results
    assert delete(setup, GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}
    assert setup.join().value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    setup.log.commit_all()
    assert results == [{GROUP: ErrorCode.NONE}]
    assert setup.join().value.error_code == ErrorCode.NONE


def test_a_deletion_that_cannot_be_stored_brings_the_group_back() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 7}, member, 1)
    setup.leave((member, None))
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert delete(setup, GROUP) == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert setup.offset() == 7
    assert setup.group().state is GroupState.EMPTY
    assert setup.group().generation_id == 2
    assert setup.join().value.generation_id == 3


def test_a_group_with_very_many_offsets_is_deleted_in_batches() -> None:
    setup = Setup()
    many = {TopicPartition("t" * 200, index): index for index in range(3_000)}
    setup.commit(many)
    appends = setup.log.appends
    assert delete(setup, GROUP) == {GROUP: ErrorCode.NONE}
    assert setup.log.appends - appends == -(-3_000 // OFFSETS_PER_BATCH)
    assert len(tombstones(setup)) == 3_000


# Deleting offsets.


def test_offsets_of_an_empty_group_are_deleted() -> None:
    setup = Setup()
    setup.commit({T0: 1, T1: 2})
    assert delete_offsets(setup, T0, U0) == (ErrorCode.NONE, {T0: 0, U0: 0})
    assert list(setup.fetch()) == [T1]
    assert tombstones(setup) == [OffsetKey(GROUP, T0)]


def test_a_group_without_its_last_offset_is_gone() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    delete_offsets(setup, T0)
    assert setup.coordinator.partitions.find(GROUP) is None


def test_topics_in_use_keep_their_offsets() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 1, U0: 2}, member, 1)
    assert delete_offsets(setup, T0, U0) == (
        ErrorCode.NONE,
        {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U0: ErrorCode.NONE},
    )
    assert list(setup.fetch()) == [T0]


def test_other_protocols_keep_all_their_offsets() -> None:
    setup = Setup()
    setup.join(protocol_type="connect")
    assert delete_offsets(setup, T0) == (ErrorCode.NON_EMPTY_GROUP, {})


def test_offsets_of_groups_that_are_not_there() -> None:
    setup = Setup()
    assert delete_offsets(setup, T0) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    assert delete_offsets(setup, T0, group_id="") == (ErrorCode.INVALID_GROUP_ID, {})


def test_offsets_that_cannot_be_deleted_stay() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.next_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert delete_offsets(setup, T0) == (ErrorCode.NONE, {T0: ErrorCode.NOT_COORDINATOR})
    assert setup.offset() == 1


@pytest.mark.parametrize("how", ["topic", "offsets", "group"])
def test_deleted_offsets_do_not_come_back_with_a_transaction(how: str) -> None:
    setup = Setup()
    setup.commit({T1: 4})
    setup.commit({T0: 5}, producer_id=7)
    if how == "topic":
        setup.coordinator.admin.on_partitions_deleted([T0])
    elif how == "offsets":
        assert delete_offsets(setup, T0) == (ErrorCode.NONE, {T0: ErrorCode.NONE})
    else:
        assert delete(setup, GROUP) == {GROUP: ErrorCode.NONE}
    end_transaction(setup)
    left = {} if how == "group" else {T1: 4}
    assert {each: setup.offset(each) for each in setup.fetch()} == left
    again = Setup(setup.log)
    assert {each: again.offset(each) for each in again.fetch()} == left


def test_an_offset_of_a_transaction_does_not_expire_while_it_is_ongoing() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.commit({T0: 5}, producer_id=7)
    setup.coordinator.tick(setup.timer.clock.now_ms() + RETENTION_MS)
    assert setup.offset() == 1
    end_transaction(setup)
    assert setup.offset() == 5
    assert Setup(setup.log).offset() == 5


def end_transaction(setup: Setup) -> None:
    batch = end_transaction_marker(
        committed=True, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp_ms=0
    )
    setup.log.append(0, bytearray(batch), lambda error, offset: None)
    setup.coordinator.on_transaction_completed(7, 0, committed=True)


@pytest.mark.usefixtures("short_turns")
def test_many_groups_without_offsets_are_removed_in_turns() -> None:
    setup = Setup()
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    for number in range(STEPS_PER_TURN * 3):
        partition.find_or_create(f"group-{number}")
    setup.coordinator.tick(setup.timer.clock.now_ms())
    assert len(partition.groups) == STEPS_PER_TURN * 2
    setup.run_deferred()
    assert not partition.groups


# Expiry.


@pytest.mark.usefixtures("short_turns")
def test_many_groups_expire_in_turns_and_runs_do_not_overlap() -> None:
    setup = Setup()
    groups = [f"group-{number}" for number in range(STEPS_PER_TURN * 2 + 1)]
    for group_id in groups:
        setup.commit({T0: 1}, group_id=group_id)
    later_ms = setup.timer.clock.now_ms() + RETENTION_MS
    setup.coordinator.tick(later_ms)
    setup.coordinator.tick(later_ms)
    assert (len(tombstones(setup)), len(setup.deferred)) == (STEPS_PER_TURN, 1)
    setup.run_deferred()
    assert len(tombstones(setup)) == len(groups)
    assert list(setup.coordinator.admin.all_groups()) == []


def test_offsets_expire_by_retention_and_take_the_group_along() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.timer.advance(RETENTION_MS - 600_000)
    setup.commit({T1: 2})
    setup.timer.advance(600_000)
    assert list(setup.fetch()) == [T1]
    setup.timer.advance(RETENTION_MS)
    assert setup.coordinator.partitions.find(GROUP) is None
    assert tombstones(setup) == [OffsetKey(GROUP, T0), OffsetKey(GROUP, T1)]


def test_offsets_committed_by_transactions_expire_like_others() -> None:
    """A query of Spark keeps its last decision so, in a group without members."""
    setup = Setup()
    setup.commit({T0: 1}, producer_id=7)
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    setup.timer.advance(RETENTION_MS - 600_000)
    assert list(setup.fetch()) == [T0]
    setup.timer.advance(2 * 600_000)
    assert setup.coordinator.partitions.find(GROUP) is None


def test_expiry_continues_after_one_run_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    setup.commit({T0: 1})
    with monkeypatch.context() as patch:
        patch.setattr(setup.coordinator.admin, "expire", Mock(side_effect=LogClosed("deleted")))
        with pytest.raises(LogClosed):
            setup.timer.advance(600_000)
    setup.timer.advance(RETENTION_MS)
    assert tombstones(setup) == [OffsetKey(GROUP, T0)]


def test_an_emptied_groups_offsets_age_from_when_it_became_empty() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 1}, member, 1)
    for _ in range(4):
        setup.timer.advance(9_000)
        setup.heartbeat(member, 1)
    setup.leave((member, None))
    emptied_ms = setup.timer.clock.now_ms()
    setup.coordinator.tick(emptied_ms + RETENTION_MS - 1)
    assert setup.offset() == 1
    again = Setup(setup.log)
    again.coordinator.tick(emptied_ms + RETENTION_MS - 1)
    assert again.offset() == 1
    setup.coordinator.tick(emptied_ms + RETENTION_MS)
    assert tombstones(setup) == [OffsetKey(GROUP, T0), GroupKey(GROUP)]


def test_a_live_group_keeps_what_it_reads_and_loses_the_rest() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 1, U0: 2}, member, 1)
    setup.coordinator.tick(setup.timer.clock.now_ms() + RETENTION_MS)
    assert list(setup.fetch()) == [T0]


def test_a_rebalancing_group_and_one_of_another_protocol_keep_all() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    setup.commit({U0: 2}, follower, generation)
    setup.join(leader)
    member = setup.join(group_id="connect", protocol_type="connect").value.member_id
    setup.sync(member, 1, group_id="connect")
    setup.commit({U0: 3}, member, 1, group_id="connect")
    setup.coordinator.tick(setup.timer.clock.now_ms() + RETENTION_MS)
    assert (setup.offset(U0), setup.offset(U0, "connect")) == (2, 3)


def test_an_expiry_time_of_the_client_is_kept() -> None:
    setup = Setup()
    now_ms = setup.timer.clock.now_ms()
    setup.commit({T0: 1}, expire_timestamp_ms=now_ms + 1_000)
    setup.commit({T1: 1}, expire_timestamp_ms=now_ms + 9 * RETENTION_MS)
    again = Setup(setup.log)
    again.coordinator.tick(now_ms + 999)
    assert again.offset() == 1
    again.coordinator.tick(now_ms + 2 * RETENTION_MS)
    assert list(again.fetch()) == [T1]


def test_an_expiry_that_cannot_be_stored_is_retried() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    later_ms = setup.timer.clock.now_ms() + RETENTION_MS
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.coordinator.tick(later_ms)
    assert setup.offset() == 1
    setup.coordinator.tick(later_ms)
    assert setup.coordinator.partitions.find(GROUP) is None


def test_a_commit_made_while_its_old_offset_expires_stays() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.hold = True
    setup.coordinator.tick(setup.timer.clock.now_ms() + RETENTION_MS)
    response = setup.commit({T0: 2})
    setup.log.commit_all()
    assert response.value == {T0: ErrorCode.NONE}
    assert setup.offset() == 2
    assert Setup(setup.log).offset() == 2


def test_a_pending_member_keeps_an_empty_group() -> None:
    setup = Setup()
    pending = setup.join(version=4).value.member_id
    setup.coordinator.tick(setup.timer.clock.now_ms())
    assert setup.join(pending, version=4).value.error_code == ErrorCode.NONE


def test_an_empty_group_with_nothing_left_is_gone_at_the_next_check() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.leave((member, None))
    setup.coordinator.tick(setup.timer.clock.now_ms())
    assert setup.coordinator.partitions.find(GROUP) is None
    assert tombstones(setup) == [GroupKey(GROUP)]


def test_an_empty_group_without_offsets_is_not_said_to_have_expired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.leave((member, None))
    with caplog.at_level("INFO", "ottla.groups"):
        setup.coordinator.tick(setup.timer.clock.now_ms())
    assert setup.coordinator.partitions.find(GROUP) is None
    removed = f"Group {GROUP} was removed: it has no members and no offsets"
    assert removed in caplog.messages
    assert not [line for line in caplog.messages if "expired" in line]
