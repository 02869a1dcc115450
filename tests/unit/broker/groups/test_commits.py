"""Committing and fetching offsets."""

import pytest

from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.commits import Committer, java_length
from ottla.broker.groups.offsets import CommittedOffset, GroupOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import read_header
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.consumer_helpers import Catalog
from tests.unit.broker.groups.helpers import GROUP, T0, T1, PendingResponse, Setup


def test_a_simple_consumer_needs_no_group() -> None:
    setup = Setup()
    assert setup.commit({T0: 42}, metadata="note").value == {T0: ErrorCode.NONE}
    fetched = setup.fetch(T0, T1)
    assert (fetched[T0].value.offset, fetched[T0].value.metadata) == (42, "note")
    assert (fetched[T1].error_code, fetched[T1].value.offset) == (ErrorCode.NONE, -1)
    assert list(setup.fetch()) == [T0]


def test_the_empty_group_id_may_commit() -> None:
    setup = Setup()
    setup.commit({T0: 1}, group_id="")
    assert setup.offset(group_id="") == 1


def test_a_partition_without_a_commit_is_no_error() -> None:
    setup = Setup()
    assert setup.fetch(T0, group_id="unknown")[T0].value.offset == -1
    assert setup.fetch(group_id="unknown") == {}


def test_a_commit_is_acknowledged_and_visible_when_its_record_is_committed() -> None:
    setup = Setup()
    setup.log.hold = True
    response = setup.commit({T0: 42})
    assert response.is_pending
    assert setup.offset() == -1
    assert setup.fetch(T0, require_stable=True)[T0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    setup.log.commit_all()
    assert response.value == {T0: ErrorCode.NONE}
    assert setup.fetch(T0, require_stable=True)[T0].value.offset == 42


@pytest.mark.parametrize(
    ("error", "responded"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_a_failed_append_changes_nothing(error: int, responded: int) -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.next_error = error
    assert setup.commit({T0: 2}).value == {T0: responded}
    assert setup.fetch(T0, require_stable=True)[T0].value.offset == 1


def test_commits_that_overtake_each_other_end_with_the_last() -> None:
    setup = Setup()
    setup.log.hold = True
    responses = [setup.commit({T0: offset}) for offset in (1, 2, 3)]
    setup.log.commit_one()
    assert setup.offset() == 1
    setup.log.commit_all()
    assert setup.offset() == 3
    assert all(response.value == {T0: ErrorCode.NONE} for response in responses)


def test_metadata_has_a_limit_in_java_characters() -> None:
    setup = Setup()
    assert setup.commit({T0: 1}, metadata="m" * 4_096).value == {T0: ErrorCode.NONE}
    too_large = {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert setup.commit({T0: 2}, metadata="m" * 4_097).value == too_large
    assert setup.commit({T0: 2}, metadata="\U0001f600" * 2_049).value == too_large
    assert setup.offset() == 1
    assert setup.log.appends == 1


def test_a_commit_of_which_one_partition_has_too_large_metadata() -> None:
    setup = Setup()
    response: PendingResponse[dict[TopicPartition, int]] = PendingResponse()
    values = {
        T0: CommittedOffset(1, -1, "m" * 4_097, 0, -1),
        T1: CommittedOffset(2, -1, "note", 0, -1),
    }
    setup.coordinator.commits.commit(Committer(GROUP, "", None, -1, 8), values, response)
    setup.run_deferred()
    assert response.value == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: ErrorCode.NONE}
    assert (setup.offset(T0), setup.offset(T1)) == (-1, 2)


def test_java_length() -> None:
    assert [java_length(text) for text in ("", "abc", "\u00e9", "\U0001f600")] == [0, 3, 1, 2]


# Who may commit.


def test_members_commit_with_their_generation() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    assert setup.commit({T0: 1}, member, 1).value == {T0: ErrorCode.NONE}
    assert setup.commit({T0: 2}, member, 0).value == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert setup.commit({T0: 2}, member, 2).value == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert setup.commit({T0: 2}, "absent", 1).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert setup.commit({T0: 2}).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert setup.commit({T0: 2}, member).value == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert setup.offset() == 1


def test_a_group_that_is_not_there_has_no_generation() -> None:
    setup = Setup()
    assert setup.commit({T0: 1}, "m", 3).value == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert setup.coordinator.partitions.find(GROUP) is None


def test_an_empty_group_takes_commits_without_a_generation_only() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.leave((member, None))
    assert setup.commit({T0: 1}).value == {T0: ErrorCode.NONE}
    assert setup.commit({T0: 2}, "tool", -1).value == {T0: ErrorCode.NONE}
    assert setup.commit({T0: 3}, member, 2).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}


def test_while_the_group_prepares_members_may_commit_and_later_not() -> None:
    setup = Setup()
    leader, follower = setup.stable_group(2)
    generation = setup.group().generation_id
    setup.join(leader)
    assert setup.commit({T0: 1}, follower, generation).value == {T0: ErrorCode.NONE}
    setup.join(follower)
    response = setup.commit({T0: 2}, follower, generation + 1)
    assert response.value == {T0: ErrorCode.REBALANCE_IN_PROGRESS}


def test_a_commit_between_join_and_sync_restarts_the_session() -> None:
    setup = Setup()
    member, generation_id = joined(setup)
    for _ in range(3):
        setup.timer.advance(6_000)  # of a session timeout of 10 s
        response = setup.commit({T0: 1}, member, generation_id)
        assert response.value == {T0: ErrorCode.REBALANCE_IN_PROGRESS}
    assert member in setup.group().members
    setup.timer.advance(10_000)
    assert member not in setup.group().members


def joined(setup: Setup) -> tuple[str, int]:
    """A member that has its JoinGroup response, and its generation."""
    response = setup.join().value
    assert response.error_code == ErrorCode.NONE
    assert setup.group().state is GroupState.COMPLETING_REBALANCE
    return response.member_id, response.generation_id


# Transactions.


def test_offsets_of_a_transaction_wait_for_its_end() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    assert setup.commit({T0: 10, T1: 11}, producer_id=7).value == {T0: 0, T1: 0}
    assert setup.offset() == 1
    assert setup.fetch(T0, require_stable=True)[T0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert (setup.offset(), setup.offset(T1)) == (10, 11)


def test_an_aborted_transaction_leaves_no_trace() -> None:
    setup = Setup()
    setup.commit({T0: 10}, producer_id=7)
    setup.coordinator.on_transaction_completed(7, 0, committed=False)
    assert setup.fetch(T0, require_stable=True)[T0].value.offset == -1


def test_a_failed_transactional_append_is_forgotten() -> None:
    setup = Setup()
    setup.log.next_error = ErrorCode.INVALID_TXN_STATE
    assert setup.commit({T0: 10}, producer_id=7).value == {T0: ErrorCode.INVALID_TXN_STATE}
    assert setup.fetch(T0, require_stable=True)[T0].error_code == ErrorCode.NONE
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert setup.offset() == -1


def test_old_producers_commit_without_a_member_id() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    assert setup.commit({T0: 1}, producer_id=7).value == {T0: ErrorCode.NONE}
    assert setup.commit({T0: 1}, member, 2, producer_id=7).value == {
        T0: ErrorCode.ILLEGAL_GENERATION
    }
    assert setup.commit({T0: 1}, "x", producer_id=7).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}


def test_a_transactional_commit_needs_a_group_id() -> None:
    response = Setup().commit({T0: 1}, group_id="", producer_id=7)
    assert response.value == {T0: ErrorCode.INVALID_GROUP_ID}


def test_a_marker_for_a_partition_that_is_elsewhere_is_ignored() -> None:
    Setup().coordinator.on_transaction_completed(7, 3, committed=True)


# Changing coordinators.


def test_a_commit_that_ends_after_the_resignation_is_not_ours_to_confirm() -> None:
    setup = Setup()
    setup.log.hold = True
    response = setup.commit({T0: 42})
    setup.coordinator.on_resigned(0, 1)
    setup.log.commit_all()
    assert response.value == {T0: ErrorCode.NOT_COORDINATOR}
    setup.elect(2)
    assert setup.offset() == 42


@pytest.mark.parametrize("group_id", [GROUP, ""])
def test_a_commit_to_another_coordinators_group(group_id: str) -> None:
    setup = Setup()
    setup.coordinator.on_resigned(0, 1)
    assert setup.commit({T0: 1}, group_id=group_id).value == {T0: ErrorCode.NOT_COORDINATOR}


def test_a_commit_whose_group_is_gone_when_it_is_in_the_log() -> None:
    setup = Setup()
    setup.log.hold = True
    response = setup.commit({T0: 42})
    partition = setup.coordinator.partitions.home_of(GROUP)
    assert partition is not None
    del partition.groups[GROUP]
    setup.log.commit_all()
    assert response.value == {T0: ErrorCode.NONE}
    assert setup.offset() == 42, "as after a load of the log"


@pytest.mark.parametrize(("committed", "offset"), [(True, 42), (False, 5)])
def test_a_transaction_that_ends_while_its_commit_is_pending(committed: bool, offset: int) -> None:
    """The marker is behind the offsets in the log, but its callback may run first: the callbacks
    of many appends that are committed together run in several turns of the loop."""
    setup = Setup()
    setup.commit({T0: 5})
    setup.log.hold = True
    response = setup.commit({T0: 42}, producer_id=7)
    setup.coordinator.on_transaction_completed(7, 0, committed=committed)
    setup.log.commit_all()
    assert response.value == {T0: ErrorCode.NONE}
    _, found = run_at_once(setup.coordinator.commits.fetch(GROUP, [T0], require_stable=True))
    assert (found[T0].error_code, found[T0].value.offset) == (ErrorCode.NONE, offset)
    # The next transaction of the producer is one of its own.
    setup.commit({T0: 50}, producer_id=7)
    setup.log.commit_all()
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert setup.offset() == 50


def test_a_commit_that_fails_leaves_nothing_of_its_transaction() -> None:
    setup = Setup()
    partition = setup.coordinator.partitions.get_active(0)
    assert partition is not None
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.commit({T0: 42}, producer_id=7)
    assert partition.open_transactions == {}
    setup.commit({T0: 42}, producer_id=7)
    setup.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    setup.commit({T0: 43}, producer_id=7)
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert setup.offset() == 42


def test_a_commit_to_a_group_that_is_being_deleted_is_refused() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.hold = True
    results: list[dict[str, int]] = []
    setup.coordinator.admin.delete_groups([GROUP], results.append)
    assert setup.group().state is GroupState.DEAD
    assert setup.commit({T0: 2}).value == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert setup.offset() == -1
    setup.log.commit_all()
    assert results == [{GROUP: ErrorCode.NONE}]


def test_the_partition_is_verified_once_per_transaction() -> None:
    setup = Setup()
    setup.log.verifies = True
    commits = setup.coordinator.commits
    guard = commits.begin_verification(GROUP, 7, 0)
    assert guard is not None
    assert commits.is_valid(GROUP, guard)
    assert setup.commit({T0: 1}, producer_id=7).value == {T0: ErrorCode.INVALID_TXN_STATE}
    assert setup.commit({T0: 1}, producer_id=7, guard=guard).value == {T0: ErrorCode.NONE}
    assert not commits.is_valid(GROUP, guard)
    assert commits.begin_verification(GROUP, 7, 0) is None
    setup.coordinator.on_resigned(0, 1)
    assert commits.begin_verification(GROUP, 8, 0) is None


# At the edges.


def test_generation_0_is_a_generation() -> None:
    setup = Setup()
    assert setup.commit({T0: 1}, "", 0).value == {T0: ErrorCode.ILLEGAL_GENERATION}
    setup.commit({T0: 1})
    assert setup.commit({T0: 2}, "", 0).value == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert setup.offset() == 1


@pytest.mark.parametrize(
    ("protocols", "version", "code"),
    [
        (("classic",), 9, ErrorCode.ILLEGAL_GENERATION),
        (("classic", "consumer"), 8, ErrorCode.ILLEGAL_GENERATION),
        (("classic", "consumer"), 9, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_member_of_a_group_that_is_gone(
    protocols: tuple[str, ...], version: int, code: int
) -> None:
    setup = Setup(catalog=Catalog(t=1), group_coordinator_rebalance_protocols=frozenset(protocols))
    assert setup.commit({T0: 1}, "m", 3, version=version).value == {T0: code}


def test_whether_a_group_is_served() -> None:
    setup = Setup()
    assert setup.coordinator.commits.check(GROUP) == ErrorCode.NONE
    setup.coordinator.on_resigned(0, 1)
    assert setup.coordinator.commits.check(GROUP) == ErrorCode.NOT_COORDINATOR


def test_what_the_batches_of_commits_are() -> None:
    """As Kafka's coordinator writes them."""
    setup = Setup()
    setup.commit({T0: 1})
    setup.commit({T0: 1}, producer_id=7)
    plain, transactional = (read_header(bytearray(batch)) for batch in setup.log.batches[0])
    assert (plain.producer_id, plain.producer_epoch, plain.is_transactional) == (-1, -1, False)
    found = (transactional.producer_id, transactional.producer_epoch, transactional.base_sequence)
    assert (found, transactional.is_transactional) == ((7, 0, 0), True)


def test_a_commit_that_was_pending_when_the_group_was_deleted() -> None:
    setup = Setup()
    setup.commit({T1: 1})
    setup.log.hold = True
    response = setup.commit({T0: 42})
    group = setup.group()
    group.transition_to(GroupState.DEAD, 0)
    setup.log.commit_all()
    assert response.value == {T0: ErrorCode.NONE}
    assert list(group.offsets.committed) == [T1], "its tombstones follow"


def test_a_commit_of_the_same_offset_in_the_log_is_replayed_again() -> None:
    """A partition is loaded twice, and a transaction's commits have one base offset."""
    offsets = GroupOffsets()
    first, second = (CommittedOffset(each, -1, "", 0, appended_at=5) for each in (1, 2))
    offsets.replay(T0, first, 5)
    offsets.replay(T0, second, 5)
    assert offsets.committed[T0] == second
    offsets.replay(T0, first, 4)
    assert offsets.committed[T0] == second


def test_pending_commits_of_a_transaction_are_counted() -> None:
    offsets = GroupOffsets()
    offsets.begin([T0, T1], 7)
    offsets.begin([T0], 7)
    offsets.finish([T0], 7)
    assert offsets.is_unstable(T0)
    assert 7 in offsets.pending_transactional
    offsets.finish([T0, T1], 7)
    assert not offsets.is_unstable(T0)
    assert offsets.pending_transactional == {}
    offsets.finish([T0])
    assert offsets.pending == {}
