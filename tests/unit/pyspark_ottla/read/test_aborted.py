"""What a read_committed reader leaves out of a fetch response."""

from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.reader import iterate_entries
from pyspark_ottla.read.aborted import AbortedFilter


def batch(base: int, producer: int = -1, *, transactional: bool = True) -> bytes:
    return bytes(
        build_batch(
            [(5, None, b"x", None)] * 2,
            base_offset=base,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional and producer >= 0,
        )
    )


def marker(base: int, producer: int, *, committed: bool) -> bytes:
    return end_transaction_marker(
        committed=committed,
        coordinator_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        timestamp_ms=5,
        base_offset=base,
    )


def kept(data: bytes, aborted: list[tuple[int, int]]) -> list[int]:
    skip = AbortedFilter(aborted)
    view = memoryview(data)
    return [
        header.base_offset
        for position, _ in iterate_entries(data)
        if not skip(view, position, header := read_header(data, position))
    ]


def test_two_producers_one_of_which_aborts_and_then_commits() -> None:
    data = b"".join(
        [
            batch(0, 1),
            batch(2, 2),
            batch(4),
            marker(6, 1, committed=False),
            batch(7, 1),
            marker(9, 2, committed=True),
            marker(10, 1, committed=True),
        ]
    )
    assert kept(data, [(0, 1)]) == [2, 4, 7]
    assert kept(data, []) == [0, 2, 4, 7], "markers are never shown"


def test_an_abort_that_begins_in_the_middle_of_the_response() -> None:
    data = batch(0, 1) + marker(2, 1, committed=True) + batch(3, 1) + marker(5, 1, committed=False)
    assert kept(data, [(3, 1)]) == [0]


def test_aborts_in_any_order_and_twice_by_one_producer() -> None:
    data = b"".join(
        [
            batch(0, 1),
            marker(2, 1, committed=False),
            batch(3, 1),
            marker(5, 1, committed=False),
            batch(6, 1),
        ]
    )
    assert kept(data, [(3, 1), (0, 1)]) == [6]


def test_an_idempotent_producer_without_transactions_is_never_left_out() -> None:
    data = batch(0, 1, transactional=False)
    assert kept(data, [(0, 1)]) == [0]
