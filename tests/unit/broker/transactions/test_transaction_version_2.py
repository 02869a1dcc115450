"""Clients of transaction version 2 (KIP-890, second part): each end raises the epoch."""

import pytest

from ottla.broker.transactions.records import read_value, transaction_value
from ottla.broker.transactions.state import (
    LAST_USABLE_EPOCH,
    MAX_EPOCH,
    TRANSACTION_VERSION_2,
    NeedsProducerId,
    Producer,
    RejectedRequest,
    Transaction,
    TransactionState,
    TransactionValue,
)
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.transactions.helpers import ID, T0, T1, Setup

S = TransactionState
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
UNKNOWN_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING
NO_PRODUCER = Producer(-1, -1)


def begin(setup: Setup, producer: Producer) -> None:
    assert setup.add(producer, T0, client_version=TRANSACTION_VERSION_2) == NONE


def prepare(*, committed: bool = True) -> tuple[Setup, Producer, Producer]:
    """A transaction whose markers are held, its producer, and what the client got."""
    setup = Setup()
    setup.leaders.hold = True
    producer = setup.producer()
    begin(setup, producer)
    ((error, given),) = setup.end_and_raise(producer, committed=committed)
    assert error == NONE
    return setup, producer, given


# The epoch.


@pytest.mark.parametrize("committed", [True, False])
def test_each_end_raises_the_epoch(committed: bool) -> None:
    setup = Setup()
    producer = setup.producer()
    for _ in range(3):
        begin(setup, producer)
        ((error, given),) = setup.end_and_raise(producer, committed=committed)
        assert (error, given) == (NONE, Producer(producer.producer_id, producer.epoch + 1))
        producer = given
    assert [(id_, epoch) for _, id_, epoch, _ in setup.leaders.written] == [
        (producer.producer_id, epoch) for epoch in (1, 2, 3)
    ]
    markers = [marker for _, request in setup.leaders.requests for marker in request.markers]
    assert {marker.transaction_version for marker in markers} == {TRANSACTION_VERSION_2}


def test_old_clients_keep_their_epoch() -> None:
    setup = Setup()
    setup.transaction_version = TRANSACTION_VERSION_2
    producer = setup.ongoing(T0)
    assert setup.end(producer) == NONE
    assert setup.end(producer) == NONE  # a retry, by the state alone
    assert setup.add(producer, T0) == NONE
    (_, request) = setup.leaders.requests[0]
    assert request.markers[0].transaction_version == 0
    assert request.markers[0].producer_epoch == producer.epoch


# Retries. The table is that of Kafka's `endTransaction`.


@pytest.mark.parametrize(
    ("state", "epoch", "committed", "result"),
    [
        ("empty", "current", False, "raised"),
        ("empty", "current", True, INVALID_STATE),
        ("empty", "before", False, FENCED),
        ("empty", "before", True, FENCED),
        ("committed", "before", True, NONE),
        ("committed", "before", False, INVALID_STATE),
        ("committed", "current", True, INVALID_STATE),
        ("committed", "current", False, "raised"),
        ("aborted", "before", True, INVALID_STATE),
        ("aborted", "before", False, NONE),
        ("aborted", "current", True, INVALID_STATE),
        ("aborted", "current", False, "raised"),
        ("aborted", "after", False, FENCED),
    ],
)
def test_an_end_without_a_transaction(
    state: str, epoch: str, committed: bool, result: int | str
) -> None:
    setup = Setup()
    current = setup.producer()
    if state != "empty":
        begin(setup, current)
        ((_, current),) = setup.end_and_raise(current, committed=state == "committed")
    else:
        current = setup.producer()  # epoch 1: there is one before
    asked = current._replace(epoch=current.epoch + {"before": -1, "current": 0, "after": 1}[epoch])
    ((error, given),) = setup.end_and_raise(asked, committed=committed)
    if result == "raised":
        assert (error, given) == (NONE, current._replace(epoch=current.epoch + 1))
        assert setup.state() is S.COMPLETE_ABORT
    else:
        assert (error, given) == (result, current if result == NONE else NO_PRODUCER)


def test_while_the_markers_are_written() -> None:
    setup, producer, given = prepare()
    for each in (producer, given):
        for committed in (True, False):
            assert setup.end_and_raise(each, committed=committed) == [(CONCURRENT, NO_PRODUCER)]
    assert setup.add(given, T1, client_version=TRANSACTION_VERSION_2) == CONCURRENT
    stranger = Producer(77, 0)
    assert setup.end_and_raise(stranger) == [(UNKNOWN_ID, NO_PRODUCER)]
    setup.leaders.release()
    assert setup.end_and_raise(producer) == [(NONE, given)]
    begin(setup, given)


def test_a_retry_reaches_the_next_coordinator() -> None:
    setup, producer, given = prepare()
    after = Setup(setup.log, ids=setup.ids, epoch=1)
    assert after.end_and_raise(producer) == [(NONE, given)]
    assert after.transaction().value.client_version == TRANSACTION_VERSION_2


# Fencing.


def test_the_abort_of_a_newer_producer_is_not_taken_for_a_retry() -> None:
    """The fenced producer would go on with the epoch of the abort, and keep the newer one out."""
    setup = Setup()
    producer = setup.producer()
    begin(setup, producer)
    assert setup.init() == (CONCURRENT, NO_PRODUCER)
    assert setup.state() is S.COMPLETE_ABORT
    assert setup.transaction().value.epoch == producer.epoch + 2
    assert setup.end_and_raise(producer, committed=False) == [(FENCED, NO_PRODUCER)]
    assert setup.add(producer, T0, client_version=TRANSACTION_VERSION_2) == FENCED
    assert setup.init() == (NONE, Producer(producer.producer_id, producer.epoch + 3))


def test_after_the_timeout_of_its_transaction_a_producer_may_go_on() -> None:
    """Its records are fenced; the abort that follows is taken for the one that has happened."""
    setup = Setup()
    producer = setup.producer()
    begin(setup, producer)
    setup.timer.advance(1_000_000)
    assert setup.state() is S.COMPLETE_ABORT
    assert setup.add(producer, T0, client_version=TRANSACTION_VERSION_2) == FENCED
    assert setup.end_and_raise(producer) == [(INVALID_STATE, NO_PRODUCER)]
    given = producer._replace(epoch=producer.epoch + 1)
    assert setup.end_and_raise(producer, committed=False) == [(NONE, given)]
    begin(setup, given)


def test_a_fenced_producer_is_no_retry_of_an_old_client() -> None:
    """A newer producer of version 1 has committed with the epoch after that of the fenced one."""
    setup = Setup()
    fenced = setup.producer()
    newer = setup.ongoing(T0)
    assert setup.end(newer) == NONE
    assert setup.end_and_raise(fenced) == [(FENCED, NO_PRODUCER)]


def test_at_the_last_epoch_a_fenced_producer_stays_fenced() -> None:
    setup = at_epoch(LAST_USABLE_EPOCH)
    producer = last(setup)
    begin(setup, producer)
    assert setup.init() == (CONCURRENT, NO_PRODUCER)
    assert setup.transaction().value.epoch == MAX_EPOCH
    for each in (setup, Setup(setup.log, ids=setup.ids, epoch=1)):
        assert each.end_and_raise(producer, committed=False) == [(FENCED, NO_PRODUCER)]


# The last epoch.


def at_epoch(epoch: int) -> Setup:
    setup = Setup()
    setup.producer()
    transaction = setup.transaction()
    transaction.value = transaction.value._replace(epoch=epoch)
    return setup


def last(setup: Setup) -> Producer:
    value = setup.transaction().value
    return Producer(value.producer_id, value.epoch)


def test_a_client_that_uses_the_epoch_of_fencing_begins_no_transaction() -> None:
    """Its markers could not be told from late ones, so nothing would end it."""
    setup = at_epoch(MAX_EPOCH)
    producer = last(setup)
    assert setup.add(producer, T0, client_version=TRANSACTION_VERSION_2) == FENCED
    assert setup.add(producer, T0) == NONE  # of version 1
    assert setup.end_and_raise(producer) == [(FENCED, NO_PRODUCER)]
    setup.timer.advance(1_000_000)
    assert setup.state() is S.COMPLETE_ABORT
    (marker,) = [marker for _, request in setup.leaders.requests for marker in request.markers]
    assert (marker.producer_epoch, marker.transaction_version) == (MAX_EPOCH, 0)


@pytest.mark.parametrize("fails_over", [False, True])
def test_after_the_last_epoch_comes_a_new_producer_id(fails_over: bool) -> None:
    setup = at_epoch(LAST_USABLE_EPOCH)
    setup.leaders.hold = True
    producer = last(setup)
    begin(setup, producer)
    ((error, given),) = setup.end_and_raise(producer)
    assert (error, given.epoch) == (NONE, 0)
    assert given.producer_id != producer.producer_id
    assert setup.add(given, T0, client_version=TRANSACTION_VERSION_2) == CONCURRENT
    if fails_over:
        setup = Setup(setup.log, ids=setup.ids, epoch=1)
    else:
        setup.leaders.release()
    ((_, producer_id, epoch, _),) = setup.leaders.written
    assert (producer_id, epoch) == (producer.producer_id, MAX_EPOCH)
    assert setup.end_and_raise(producer) == [(NONE, given)]  # a retry
    assert setup.end_and_raise(producer, committed=False) == [(INVALID_STATE, NO_PRODUCER)]
    begin(setup, given)
    assert setup.end_and_raise(producer) == [(UNKNOWN_ID, NO_PRODUCER)]


def test_without_a_producer_id_the_transaction_stays_open() -> None:
    setup = at_epoch(LAST_USABLE_EPOCH)
    producer = last(setup)
    begin(setup, producer)
    setup.ids.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert setup.end_and_raise(producer) == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER)]
    assert setup.state() is S.ONGOING
    setup.ids.error = 0
    ((error, given),) = setup.end_and_raise(producer)
    assert (error, given.epoch) == (NONE, 0)


def test_the_state_asks_for_the_producer_id() -> None:
    value = TransactionValue(S.ONGOING, 5, LAST_USABLE_EPOCH, 1_000, frozenset((T0,)), 20, 20)
    transaction = Transaction(ID, value)
    with pytest.raises(NeedsProducerId):
        transaction.end_and_raise(Producer(5, LAST_USABLE_EPOCH), True, None, 50)
    with pytest.raises(RejectedRequest):
        transaction.end_and_raise(Producer(5, 0), True, 9, 50)


# Records.


@pytest.mark.parametrize(
    ("level", "client_version", "version"), [(0, 0, 0), (0, 2, 1), (1, 0, 1), (2, 0, 1), (2, 2, 1)]
)
def test_the_version_of_a_record(level: int, client_version: int, version: int) -> None:
    value = TransactionValue(
        S.PREPARE_COMMIT,
        5,
        MAX_EPOCH,
        1_000,
        frozenset((T0,)),
        20,
        30,
        last_producer_id=4 if version else -1,
        next_producer_id=6 if version else -1,
        client_version=client_version,
    )
    data = transaction_value(value, level)
    assert data[:2] == bytes((0, version))
    assert read_value(ID, data) == value


def test_an_upgrade_and_a_downgrade_between_transactions() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)  # of version 1
    assert setup.end(producer) == NONE
    begin(setup, producer)
    ((_, producer),) = setup.end_and_raise(producer)
    assert setup.add(producer, T0) == NONE
    assert setup.end(producer, committed=False) == NONE
    value = setup.transaction().value
    assert (value.epoch, value.client_version) == (producer.epoch, 0)
