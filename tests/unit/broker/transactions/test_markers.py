"""Markers find their way, whatever happens to leaders and brokers."""

import pytest

from ottla.broker.requests.request_parts import MAX_UNDIVIDED_ELEMENTS
from ottla.broker.transactions import markers
from ottla.broker.transactions.markers import RETRY_DELAY_MS
from ottla.broker.transactions.state import TransactionState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.transactions.helpers import ID, NO_LEADER, T0, T1, U0, Setup

S = TransactionState


def test_one_request_for_each_broker() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: 1, T1: 2, U0: 1}
    setup.end(setup.ongoing(T0, T1, U0))
    assert sorted(broker for broker, _ in setup.leaders.requests) == [1, 2]
    assert len(setup.leaders.written) == 3


def test_what_comes_while_a_request_is_under_way_shares_the_next() -> None:
    setup = Setup()
    setup.leaders.hold = True
    for number in range(4):
        name = f"txn-{number}"
        setup.end(setup.ongoing(T0, transactional_id=name), transactional_id=name)
    assert len(setup.leaders.requests) == 1
    setup.leaders.release()
    assert [len(request.markers) for _, request in setup.leaders.requests] == [1, 3]
    assert len(setup.leaders.written) == 4


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_failed_is_retried_after_a_moment(error: int) -> None:
    setup = Setup()
    setup.leaders.errors[T0] = [error, error]
    setup.end(setup.ongoing(T0, T1))
    assert [where for where, *_ in setup.leaders.written] == [T1]
    assert setup.state() is S.PREPARE_COMMIT
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.PREPARE_COMMIT
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.COMPLETE_COMMIT
    assert sorted(where for where, *_ in setup.leaders.written) == [T0, T1]


def test_a_new_leader_is_looked_up_for_every_try() -> None:
    setup = Setup()
    setup.leaders.errors[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    setup.end(setup.ongoing(T0))
    setup.leaders.leaders[T0] = 2
    setup.timer.advance(RETRY_DELAY_MS)
    assert [broker for broker, _ in setup.leaders.requests] == [1, 2]


def test_a_broker_that_is_gone_and_a_partition_without_a_leader_are_waited_for() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: 1, T1: NO_LEADER}
    setup.leaders.unreachable.add(1)
    setup.end(setup.ongoing(T0, T1))
    setup.timer.advance(10 * RETRY_DELAY_MS)
    assert setup.state() is S.PREPARE_COMMIT
    assert not setup.leaders.written
    setup.leaders.unreachable.clear()
    setup.leaders.leaders[T1] = 2
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.COMPLETE_COMMIT


def test_a_deleted_partition_needs_no_marker() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: None, T1: 1}
    setup.end(setup.ongoing(T0, T1))
    assert setup.state() is S.COMPLETE_COMMIT
    assert [where for where, *_ in setup.leaders.written] == [T1]


def test_a_transaction_whose_partitions_are_all_deleted_is_completed() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: NO_LEADER, T1: None}
    setup.end(setup.ongoing(T0, T1))
    assert setup.state() is S.PREPARE_COMMIT
    setup.leaders.leaders[T0] = None
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.COMPLETE_COMMIT
    assert not setup.leaders.requests


def test_a_partition_that_is_not_known_yet_gets_its_marker_later() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: None, T1: 1}
    setup.leaders.existing = {T0}
    setup.end(setup.ongoing(T0, T1))
    setup.timer.advance(10 * RETRY_DELAY_MS)
    assert setup.state() is S.PREPARE_COMMIT
    setup.leaders.leaders[T0] = 2  # UpdateMetadata has come
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.COMPLETE_COMMIT
    assert [where for where, *_ in setup.leaders.written] == [T1, T0]


def test_after_a_reload_every_partition_that_exists_gets_a_marker() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: NO_LEADER}
    setup.end(setup.ongoing(T0))
    setup.leaders.leaders = {T0: None}  # a restarted broker: its metadata cache is empty
    setup.leaders.existing = {T0}
    setup.elect(1)
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.PREPARE_COMMIT
    setup.leaders.leaders = {}
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.COMPLETE_COMMIT
    assert [where for where, *_ in setup.leaders.written] == [T0]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_check_that_ends_after_a_resignation_changes_nothing(is_deleted: bool) -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: None}
    setup.leaders.existing = set() if is_deleted else {T0}
    setup.leaders.hold_checks = True
    setup.end(setup.ongoing(T0))
    appends = setup.log.appends
    setup.coordinator.on_resigned(0, 1)
    setup.leaders.release_checks()
    setup.timer.advance(10 * RETRY_DELAY_MS)
    assert (setup.log.appends, setup.coordinator.markers.pending) == (appends, 0)
    setup.leaders.leaders = {}
    setup.elect(2)
    assert setup.state() is S.COMPLETE_COMMIT
    assert [where for where, *_ in setup.leaders.written] == [T0]


def test_a_check_of_the_previous_leader_epoch_does_not_count_for_the_next() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: None}
    setup.leaders.hold_checks = True
    setup.end(setup.ongoing(T0))
    (_, on_result), *_ = setup.leaders.held_checks
    setup.elect(1)
    on_result(True)
    assert setup.state() is S.PREPARE_COMMIT
    assert setup.coordinator.markers.pending == 1


@pytest.mark.parametrize(
    "error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION]
)
def test_where_no_marker_fits_none_is_needed(error: int) -> None:
    setup = Setup()
    setup.leaders.errors[T0] = [error]
    setup.end(setup.ongoing(T0, T1))
    assert setup.state() is S.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_a_fenced_coordinator_stops(error: int) -> None:
    setup = Setup()
    setup.leaders.errors[T0] = [error]
    setup.end(setup.ongoing(T0, T1))
    setup.timer.advance(10 * RETRY_DELAY_MS)
    assert setup.state() is S.PREPARE_COMMIT
    assert setup.coordinator.markers.pending == 0
    assert len(setup.leaders.requests) == 1


def test_a_leader_that_stays_the_leader_continues_with_its_new_epoch() -> None:
    setup = Setup()
    setup.log.hold = True
    producer = setup.init_later()
    setup.coordinator.partitions.advance_epoch(0, 3)
    setup.log.commit_all()
    ((error, _),) = producer
    assert error == ErrorCode.NONE
    setup.log.hold = False
    setup.leaders.errors[T0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    setup.end(setup.ongoing(T0))
    assert setup.state() is S.PREPARE_COMMIT
    setup.coordinator.partitions.advance_epoch(0, 4)
    setup.timer.advance(RETRY_DELAY_MS)
    assert setup.state() is S.COMPLETE_COMMIT
    assert [request.markers[0].coordinator_epoch for _, request in setup.leaders.requests] == [3, 4]


def test_responses_to_a_cancelled_request_are_ignored() -> None:
    setup = Setup()
    setup.leaders.hold = True
    producer = setup.ongoing(T0)
    setup.end(producer)
    setup.coordinator.on_resigned(0, 1)
    setup.elect(2)
    assert setup.transaction(ID).state is S.PREPARE_COMMIT
    setup.leaders.release()
    assert setup.state() is S.COMPLETE_COMMIT
    assert [request.markers[0].coordinator_epoch for _, request in setup.leaders.requests] == [0, 2]


def test_a_transaction_without_partitions_needs_no_marker() -> None:
    setup = Setup()
    setup.ongoing(T0)
    home = setup.coordinator.partitions.get_active(0)
    assert home is not None
    transaction = setup.transaction()
    transaction.value = transaction.value._replace(state=S.PREPARE_COMMIT, partitions=frozenset())
    setup.coordinator.markers.start(home, transaction)
    assert setup.state() is S.COMPLETE_COMMIT
    assert setup.leaders.requests == []
    assert setup.coordinator.markers.pending == 0


def test_a_deletion_that_is_reported_later_completes_the_transaction() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: None}
    setup.leaders.hold_checks = True
    setup.end(setup.ongoing(T0))
    assert (setup.state(), setup.coordinator.markers.pending) == (S.PREPARE_COMMIT, 1)
    setup.leaders.release_checks()
    assert (setup.state(), setup.coordinator.markers.pending) == (S.COMPLETE_COMMIT, 0)


def test_a_closed_sender_sends_nothing() -> None:
    setup = Setup()
    setup.leaders.leaders = {T0: NO_LEADER}
    setup.end(setup.ongoing(T0))
    setup.coordinator.shutdown()
    assert setup.coordinator.markers.pending == 0
    setup.leaders.leaders = {}
    setup.timer.advance(10 * RETRY_DELAY_MS)
    assert setup.leaders.requests == []


class TwoStatePartitions(Setup):
    """Transactional ids of both partitions of the transaction topic; requests are held back."""

    def __init__(self) -> None:
        super().__init__(transaction_state_log_num_partitions=2)
        self.coordinator.on_elected(1, 0)
        while self.deferred:
            self.deferred.pop(0)()
        self.leaders.hold = True
        names = [f"txn-{number}" for number in range(20)]
        self.names = [
            [name for name in names if self.coordinator.partition_for(name) == index]
            for index in (0, 1)
        ]

    def end_one(self, index: int) -> str:
        """Ends a transaction whose id is in this partition."""
        name = self.names[index].pop()
        self.end(self.ongoing(T0, transactional_id=name), transactional_id=name)
        return name

    def respond(self) -> None:
        """To the oldest request; the next one is held back again."""
        broker_id, request, on_response = self.leaders.held.pop(0)
        on_response(self.leaders._response(broker_id, request))


def in_partition(setup: Setup, index: int, name: str) -> TransactionState:
    home = setup.coordinator.partitions.get_active(index)
    assert home is not None
    return home.transactions[name].state


def test_a_cancelled_transaction_does_not_stop_the_others_of_a_request() -> None:
    setup = TwoStatePartitions()
    setup.end_one(1)
    setup.end_one(0)
    last = setup.end_one(1)
    setup.respond()
    assert [len(request.markers) for _, request in setup.leaders.requests] == [1, 2]
    setup.coordinator.on_resigned(0, 1)
    setup.respond()
    assert in_partition(setup, 1, last) is S.COMPLETE_COMMIT


def test_a_request_of_cancelled_transactions_only_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markers, "MAX_PARTITIONS_PER_REQUEST", 1)
    setup = TwoStatePartitions()
    setup.end_one(1)
    setup.end_one(0)
    names = [setup.end_one(1), setup.end_one(1)]
    setup.coordinator.on_resigned(0, 1)
    for count in (1, 2, 3):
        assert len(setup.leaders.requests) == count
        setup.respond()
    assert [in_partition(setup, 1, name) for name in names] == [S.COMPLETE_COMMIT] * 2
    assert setup.coordinator.markers._queues == {}


def test_a_request_has_few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MAX_PARTITIONS_PER_REQUEST", 2)
    setup = Setup()
    setup.leaders.hold = True
    setup.end(setup.ongoing(T0, T1, U0))
    for number in range(3):
        name = f"txn-{number}"
        setup.end(setup.ongoing(T0, transactional_id=name), transactional_id=name)
    while setup.leaders.held:
        setup.leaders.release()
    sizes = [
        sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics)
        for _, request in setup.leaders.requests
    ]
    assert sizes == [2, 2, 2]
    assert len(setup.leaders.written) == 6
    assert setup.state() is S.COMPLETE_COMMIT
    assert setup.state("txn-2") is S.COMPLETE_COMMIT


def test_a_completion_is_not_appended_again_when_it_was() -> None:
    setup = Setup()
    setup.end(setup.ongoing(T0))
    assert setup.state() is S.COMPLETE_COMMIT
    assert setup.timer.advance(1_000) == 0


def elements(request: WriteTxnMarkersRequest) -> int:
    """As a broker counts them while it decodes the request."""
    return sum(
        1 + sum(1 + len(topic.partition_indexes) for topic in marker.topics)
        for marker in request.markers
    )


def test_markers_of_many_partitions_are_several_requests() -> None:
    """A broker closes the connection of a request that has too many elements."""
    setup = Setup()
    many = frozenset(TopicPartition(f"topic-{index % 7}", index) for index in range(8_000))
    producer = setup.ongoing(*many)
    assert setup.end(producer, committed=True) == ErrorCode.NONE
    assert {where for where, *_ in setup.leaders.written} == many
    assert len(setup.leaders.written) == len(many)
    assert max(elements(request) for _, request in setup.leaders.requests) < MAX_UNDIVIDED_ELEMENTS
    assert setup.state() is S.COMPLETE_COMMIT
