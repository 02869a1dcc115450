"""Which batches of a leader take the short way into the log, and that it is no other log then."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER,
    LOG_OVERHEAD,
    MAX_SEQUENCE,
    patch_base_offset,
)
from ottla.protocol.records.crc32c import crc32c
from ottla.storage.log.log import Log
from ottla.storage.records.validation import Accepted, prepare_for_follower
from tests.doubles.storage_logs import NOW_MS, batch_of, new_log, plain

EPOCH = 3


def batch_at(offset: int, count: int = 1, **fields: object) -> bytearray:
    """As it comes from the leader."""
    batch = batch_of(plain(count), **fields)
    patch_base_offset(batch, 0, offset, EPOCH)
    return batch


def empty_batch(offset: int, last_offset: int) -> bytearray:
    """What compaction leaves of a batch that has no record any more: the header."""
    batch = bytearray(HEADER.size)
    fields = (0, last_offset - offset, NOW_MS, NOW_MS, -1, -1, -1, 0)
    HEADER.pack_into(batch, 0, offset, HEADER.size - LOG_OVERHEAD, EPOCH, 2, 0, *fields)
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    HEADER.pack_into(batch, 0, offset, HEADER.size - LOG_OVERHEAD, EPOCH, 2, crc, *fields)
    return batch


def of_producer(offset: int, sequence: int, count: int = 1, **fields: object) -> bytearray:
    """Of producer 0 in epoch 1."""
    fields = {"producer_id": 0, "producer_epoch": 1, "base_sequence": sequence, **fields}
    return batch_at(offset, count, **fields)


def state_of(log: Log) -> object:
    """All that an append may change."""
    end = log.log_end_offset
    producers = log.producer_state
    return (
        b"".join(bytes(batch) for batch in log.batches(0, end)),
        {key: repr(entry) for key, entry in producers.producers.items()},
        producers.end_offset,
        log.leader_epochs.entries,
        [(segment.base_offset, segment.size) for segment in log.segments],
    )


def outcome(log: Log, records: bytes) -> object:
    try:
        info = log.append_as_follower(bytearray(records), now_ms=NOW_MS)
    except Exception as error:
        return type(error)
    # An incomplete batch behind it is dropped, and not counted.
    return (info.first_offset, info.last_offset, info.max_timestamp, info.bytes)


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what took the long way since."""
    sizes: list[int] = []

    def counted(records: bytearray) -> Accepted:
        sizes.append(len(records))
        return prepare_for_follower(records)

    monkeypatch.setattr("ottla.storage.log.log.prepare_for_follower", counted)
    return sizes


FIRST_OF_PRODUCER = (of_producer(0, 5),)

SHORT = {
    "a record": ((), batch_at(0)),
    "records": ((), batch_at(0, 3)),
    "after a gap": ((), batch_at(7, 2)),
    "without a record": ((), empty_batch(0, 4)),
    "the next one of a producer": (FIRST_OF_PRODUCER, of_producer(1, 6, 2)),
    "the last sequence numbers": (
        (of_producer(0, MAX_SEQUENCE - 2),),
        of_producer(1, MAX_SEQUENCE - 1, 2),
    ),
    "sequence numbers begin again": ((of_producer(0, MAX_SEQUENCE),), of_producer(1, 0)),
}
LONG = {
    "a batch of a transaction": ((), of_producer(0, 0, transactional=True)),
    "the first one of a producer": ((), FIRST_OF_PRODUCER[0]),
    "a new epoch of a producer": (FIRST_OF_PRODUCER, of_producer(1, 0, producer_epoch=2)),
    "an old epoch of a producer": (FIRST_OF_PRODUCER, of_producer(1, 6, producer_epoch=0)),
    "outside of an open transaction": (
        (of_producer(0, 0, transactional=True),),
        of_producer(1, 1),
    ),
    "sequence numbers that begin again in it": (
        (of_producer(0, MAX_SEQUENCE - 1),),
        of_producer(1, MAX_SEQUENCE, 2),
    ),
    "a producer without sequence numbers": (FIRST_OF_PRODUCER, of_producer(1, -1)),
    "below the end of the log": ((batch_at(0, 3),), batch_at(2)),
}


Case = tuple[tuple[bytearray, ...], bytearray]


def after(before: tuple[bytearray, ...], segment_bytes: int = 1_000) -> Log:
    log = new_log(segment_bytes=segment_bytes)
    for batch in before:
        log.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    return log


def assert_same(case: Case, segment_bytes: int = 1_000) -> None:
    """An incomplete batch behind this one is dropped, but what it follows takes the long way."""
    before, batch = case
    alone, followed = after(before, segment_bytes), after(before, segment_bytes)
    assert outcome(alone, bytes(batch)) == outcome(followed, bytes(batch + batch[:20]))
    assert state_of(alone) == state_of(followed)


@pytest.mark.parametrize("case", SHORT.values(), ids=SHORT)
def test_a_single_plain_batch_is_not_prepared_like_others(case: Case, long_way: list[int]) -> None:
    before, batch = case
    log = after(before)
    long_way.clear()
    log.append_as_follower(bytearray(batch), now_ms=NOW_MS)
    assert long_way == []
    assert_same(case)


@pytest.mark.parametrize("case", LONG.values(), ids=LONG)
def test_what_needs_a_closer_look_is_checked(case: Case, long_way: list[int]) -> None:
    before, batch = case
    log = after(before)
    long_way.clear()
    outcome(log, bytes(batch))
    assert long_way == [len(batch)]
    assert_same(case)


@pytest.mark.parametrize(("spare", "is_short"), [(1, True), (0, True), (-1, False)])
def test_a_batch_larger_than_a_segment_takes_the_long_way(
    spare: int, is_short: bool, long_way: list[int]
) -> None:
    batch = batch_at(0, 3)
    after((batch,), len(batch) + spare)
    assert (long_way == []) == is_short
    assert_same(((), batch), len(batch) + spare)
