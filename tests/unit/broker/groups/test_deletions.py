"""Deletions of groups and offsets that are interrupted: memory stays as the next coordinator reads
the log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.groups.commits import Committer
from ottla.broker.groups.log import appender
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.topics import TopicPartition
from tests.doubles.pace import steps_per_turn
from tests.unit.broker.groups.helpers import GROUP, T0, T1, PendingResponse, Setup

LATE = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def delete(setup: Setup) -> list[dict[str, int]]:
    results: list[dict[str, int]] = []
    setup.coordinator.admin.delete_groups([GROUP], results.append)
    return results


def stored(setup: Setup) -> dict[TopicPartition, int]:
    """The committed offsets, which are the same after the next load."""
    found = {partition: each.value.offset for partition, each in setup.fetch().items()}
    again = Setup(setup.log)
    assert {partition: each.value.offset for partition, each in again.fetch().items()} == found
    assert recorded_groups(setup) == recorded_groups(again)
    return found


def recorded_groups(setup: Setup) -> set[str]:
    """A load can leave empty groups, which the next check for expired offsets removes."""
    groups = setup.coordinator.admin.all_groups()
    return {group.group_id for group in groups if group.offsets or group.generation_id}


@pytest.mark.parametrize("producer_id", [None, 7])
def test_a_commit_that_is_pending_is_deleted_with_its_group(producer_id: int | None) -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.hold = True
    pending = setup.commit({T1: 2}, producer_id=producer_id)
    assert pending.is_pending
    results = delete(setup)
    setup.log.commit_all()
    assert pending.value == {T1: ErrorCode.NONE}
    assert results == [{GROUP: ErrorCode.NONE}]
    if producer_id is not None:
        setup.log.hold = False
        marker = end_transaction_marker(
            committed=True,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=0,
        )
        setup.log.append(0, bytes(marker), lambda error, offset: None)
        setup.coordinator.on_transaction_completed(producer_id, 0, committed=True)
    assert stored(setup) == {}


@pytest.mark.parametrize("what", ["offsets", "group"])
@pytest.mark.parametrize("commits_again", [False, True])
def test_a_commit_whose_result_comes_after_that_of_a_deletion(
    what: str, commits_again: bool
) -> None:
    """The results of many appends that are committed together come in several turns of the loop,
    and a later append can be complete at once."""
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.hold = True
    pending = setup.commit({T0: 5})
    if what == "group":
        results = delete(setup)
    else:
        setup.coordinator.admin.delete_offsets(GROUP, [T0], lambda error, rows: None)
    setup.log.held.rotate(1)
    setup.log.commit_one()
    if what == "group":
        assert results == [{GROUP: ErrorCode.NONE}]
    if commits_again:
        setup.log.hold = False
        setup.commit({T1: 9})
    setup.log.commit_all()
    assert pending.value == {T0: ErrorCode.NONE}
    assert stored(setup) == ({T1: 9} if commits_again else {})
    setup.log.hold = False
    setup.commit({T0: 6})
    assert stored(setup)[T0] == 6


@pytest.mark.parametrize("error", LATE)
def test_a_group_whose_tombstones_are_replicated_late_is_deleted(error: int) -> None:
    setup = Setup()
    member = setup.stable_group(1)[0]
    setup.commit({T0: 1}, member, 1)
    setup.leave((member, None))
    setup.log.hold = True
    results = delete(setup)
    setup.log.time_out_all(error)
    assert results[0][GROUP] != ErrorCode.NONE
    assert stored(setup) == {}


@pytest.mark.parametrize("error", LATE)
def test_offsets_whose_tombstones_are_replicated_late_are_deleted(error: int) -> None:
    setup = Setup()
    setup.commit({T0: 1, T1: 2})
    setup.log.hold = True
    results: list[dict[TopicPartition, int]] = []
    setup.coordinator.admin.delete_offsets(GROUP, [T0], lambda _, rows: results.append(rows))
    setup.log.time_out_all(error)
    assert results[0][T0] != ErrorCode.NONE
    assert stored(setup) == {T1: 2}


def test_a_commit_after_tombstones_that_are_replicated_late_counts() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.hold = True
    setup.coordinator.admin.delete_offsets(GROUP, [T0], lambda error, rows: None)
    late = setup.log.held.popleft()
    after = setup.commit({T0: 2})
    late[2](ErrorCode.REQUEST_TIMED_OUT, -1)
    setup.log.commit_all()
    assert after.value == {T0: ErrorCode.NONE}
    assert stored(setup) == {T0: 2}


def test_a_group_of_whose_tombstones_some_are_stored_keeps_the_other_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(appender, "MAX_TOMBSTONE_BATCH_BYTES", 1)
    setup = Setup()
    setup.commit({T0: 1, T1: 2})
    setup.log.hold = True
    results = delete(setup)
    setup.log.commit_one()
    setup.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert results == [{GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert stored(setup) == {T1: 2}
    setup.log.hold = False
    assert delete(setup) == [{GROUP: ErrorCode.NONE}]
    assert stored(setup) == {}


MANY = [TopicPartition("many", index) for index in range(3_000)]


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Work on many offsets pauses."""
    with steps_per_turn(2):
        yield


def large_group() -> Setup:
    setup = Setup()
    setup.stable_group()
    setup.leave((next(iter(setup.group().members)), None))
    setup.commit(dict.fromkeys(MANY, 1))
    return setup


@pytest.mark.usefixtures("short_turns")
def test_a_group_with_many_offsets_is_deleted_in_slices() -> None:
    setup = large_group()
    results = delete(setup)
    assert not results
    assert setup.deferred
    assert setup.commit({T0: 1}).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    setup.run_deferred()
    assert results == [{GROUP: ErrorCode.NONE}]
    assert stored(setup) == {}
    assert recorded_groups(setup) == set()


@pytest.mark.usefixtures("short_turns")
def test_a_coordinator_that_resigns_while_it_deletes_appends_nothing_more() -> None:
    setup = large_group()
    results = delete(setup)
    setup.coordinator.on_resigned(0, 1)
    setup.coordinator.on_elected(0, 2)
    appends = setup.log.appends
    setup.run_deferred()
    assert results == [{GROUP: ErrorCode.NOT_COORDINATOR}]
    assert setup.log.appends == appends
    assert stored(setup)
    delete(setup)
    setup.run_deferred()
    assert stored(setup) == {}


@pytest.mark.usefixtures("short_turns")
def test_a_group_with_many_offsets_of_which_a_part_is_not_deleted() -> None:
    setup = large_group()
    results = delete(setup)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.run_deferred()
    assert results == [{GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert 0 < len(stored(setup)) < len(MANY)
    assert setup.group().is_empty


@pytest.mark.usefixtures("short_turns")
def test_many_offsets_of_a_group_expire_in_slices() -> None:
    """What is committed in a pause does not expire."""
    setup = Setup()
    setup.commit(dict.fromkeys(MANY, 1))
    now_ms = setup.timer.clock.now_ms() + setup.settings.offsets_retention_ms
    setup.coordinator.tick(now_ms)
    assert setup.deferred
    assert 0 < len(setup.fetch()) < len(MANY)
    committed: PendingResponse[dict[TopicPartition, int]] = PendingResponse()
    later = {MANY[-1]: CommittedOffset(2, -1, "", now_ms)}
    setup.coordinator.commits.commit(Committer(GROUP), later, committed)
    setup.run_deferred()
    assert committed.value == {MANY[-1]: ErrorCode.NONE}
    assert stored(setup) == {MANY[-1]: 2}
