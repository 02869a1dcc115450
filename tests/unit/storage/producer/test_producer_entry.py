"""The rules for one producer: sequence numbers, epochs, duplicates, transactions, markers."""

import pytest

from ottla.protocol.records.batch import MAX_SEQUENCE, BatchHeader, read_header
from ottla.storage.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from ottla.storage.producer.producer_entry import (
    AppendedBatch,
    AppendOrigin,
    ProducerAppend,
    ProducerEntry,
)
from tests.doubles.storage_logs import batch_of

CLIENT, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.REPLICATION


def header(
    sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    return read_header(
        batch_of(
            count,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def write(
    entry: ProducerEntry | None,
    *headers: BatchHeader,
    origin: AppendOrigin = CLIENT,
    first_offset: int = 0,
    lowest: int | None = None,
) -> ProducerEntry:
    append = ProducerAppend("t-0", 7, entry, origin, lowest)
    for one in headers:
        append.append_data(one, first_offset, first_offset + one.last_offset_delta)
        first_offset += one.last_offset_delta + 1
    return append.entry


def test_sequence_numbers_have_to_follow() -> None:
    entry = write(None, header(0, 3), header(3, 2))
    assert (entry.last_sequence, entry.last_offset, entry.epoch) == (4, 4, 0)
    for wrong in (4, 6, 0):
        with pytest.raises(OutOfOrderSequence, match="the last one is 4") as caught:
            write(entry, header(wrong))
        assert caught.value.producer_id == 7
    assert entry.last_sequence == 4, "a refused batch leaves no trace"


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert write(None, header(17)).last_sequence == 17


def test_a_new_epoch_has_to_begin_with_zero() -> None:
    entry = write(None, header(0))
    with pytest.raises(OutOfOrderSequence, match="the first one of epoch 1 must be 0"):
        write(entry, header(1, epoch=1))
    entry = write(entry, header(0, epoch=1))
    assert (entry.epoch, len(entry.batches)) == (1, 1)


def test_an_old_epoch_is_refused_but_not_from_the_leader(caplog: pytest.LogCaptureFixture) -> None:
    entry = write(None, header(0, epoch=5))
    with pytest.raises(InvalidProducerEpoch, match="epoch 4, current 5"):
        write(entry, header(1, epoch=4))
    assert write(entry, header(1, epoch=4), origin=REPLICATION).epoch == 4
    assert "epoch 4, current 5" in caplog.text


def test_numbers_wrap_around() -> None:
    entry = write(None, header(MAX_SEQUENCE - 1, 2))
    assert entry.last_sequence == MAX_SEQUENCE
    with pytest.raises(OutOfOrderSequence):
        write(entry, header(1))
    entry = write(entry, header(0, 2))
    assert entry.last_sequence == 1
    across = write(write(None, header(MAX_SEQUENCE - 1, 1)), header(MAX_SEQUENCE, 3))
    assert across.last_sequence == 1


def test_five_batches_are_recognised_again() -> None:
    entry = write(None, *[header(n * 2, 2) for n in range(7)])
    assert len(entry.batches) == 5
    assert entry.find_duplicate(header(2, 2)) is None
    assert entry.find_duplicate(header(4, 2)) == AppendedBatch(
        4, 5, 4, 5, entry.batches[0].timestamp
    )
    assert entry.find_duplicate(header(12, 2)) is not None
    assert entry.find_duplicate(header(12, 1)) is None
    assert entry.find_duplicate(header(12, 2, epoch=1)) is None


def test_the_leader_and_the_coordinator_need_no_sequence() -> None:
    entry = write(None, header(0))
    assert write(entry, header(9), origin=REPLICATION).last_sequence == 9
    assert write(entry, header(9), origin=AppendOrigin.COORDINATOR).last_sequence == 9


def test_transactions_begin_once_and_keep_out_plain_writes() -> None:
    append = ProducerAppend("t-0", 7, None, CLIENT)
    append.append_data(header(0, transactional=True), 10, 10)
    append.append_data(header(1, transactional=True), 11, 11)
    assert append.started == [10]
    assert append.entry.transaction_first_offset == 10
    with pytest.raises(InvalidTransactionState, match="since offset 10"):
        append.append_data(header(2), 12, 12)


def test_a_marker_ends_the_transaction() -> None:
    entry = write(None, header(0, transactional=True), first_offset=10)
    append = ProducerAppend("t-0", 7, entry, AppendOrigin.COORDINATOR)
    done = append.append_marker(0, 3, 20, 99, aborted=True)
    assert done is not None
    assert (done.first_offset, done.last_offset, done.aborted) == (10, 20, True)
    after = append.entry
    assert (after.transaction_first_offset, after.coordinator_epoch) == (-1, 3)
    assert (after.last_timestamp, after.last_sequence) == (99, 0)
    assert append.append_marker(0, 3, 21, 99, aborted=True) is None


def test_a_marker_with_a_newer_epoch_fences_the_producer() -> None:
    entry = write(None, header(0, transactional=True))
    append = ProducerAppend("t-0", 7, entry, AppendOrigin.COORDINATOR)
    append.append_marker(1, 0, 20, 99, aborted=True)
    assert append.entry.batches == []
    with pytest.raises(InvalidProducerEpoch):
        append.append_marker(0, 0, 21, 99, aborted=True)
    with pytest.raises(InvalidProducerEpoch):
        write(append.entry, header(1))
    assert write(append.entry, header(0, epoch=1)).last_sequence == 0


def test_a_replaced_coordinator_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    entry = write(None, header(0, transactional=True))
    entry.coordinator_epoch = 5
    append = ProducerAppend("t-0", 7, entry, AppendOrigin.COORDINATOR)
    with pytest.raises(TransactionCoordinatorFenced, match="epoch 4, current 5"):
        append.append_marker(0, 4, 20, 99, aborted=True)
    follower = ProducerAppend("t-0", 7, entry, REPLICATION)
    assert follower.append_marker(0, 4, 20, 99, aborted=True) is not None
    assert "epoch 4" in caplog.text


def test_a_copy_has_all_fields() -> None:
    entry = write(None, header(0, epoch=2, transactional=True), first_offset=10)
    entry.coordinator_epoch = 5
    copied = entry.copy()
    for name in ProducerEntry.__slots__:
        assert getattr(copied, name) == getattr(entry, name), name
    assert copied.batches is not entry.batches


def test_an_unverified_sequence_below_keeps_later_ones_out() -> None:
    with pytest.raises(OutOfOrderSequence, match="verification of 3 is pending"):
        write(None, header(5), lowest=3)
    assert write(None, header(3), lowest=3).last_sequence == 3


def test_idle_producers_expire_but_not_with_an_open_transaction() -> None:
    idle, busy = ProducerEntry(1), ProducerEntry(2)
    idle.last_timestamp = busy.last_timestamp = 100
    busy.transaction_first_offset = 5
    assert not idle.is_expired(199, 100)
    assert idle.is_expired(200, 100)
    assert not busy.is_expired(10_000, 100)
    assert "ProducerEntry(1" in repr(idle)
