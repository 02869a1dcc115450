from ottla.broker.share.in_flight import InFlightBatch, InFlightBatches
from ottla.broker.share.persister import RecordState


def ranges(batches: InFlightBatches) -> list[tuple[int, int]]:
    return [(batch.first_offset, batch.last_offset) for batch in batches]


def filled(*offsets: tuple[int, int]) -> InFlightBatches:
    batches = InFlightBatches()
    for first, last in offsets:
        batches.add(InFlightBatch(first, last, RecordState.AVAILABLE, 1))
    return batches


def test_batches_are_sorted() -> None:
    assert ranges(filled((10, 19), (0, 4), (5, 9))) == [(0, 4), (5, 9), (10, 19)]


def test_overlapping() -> None:
    batches = filled((0, 4), (5, 9), (20, 29))
    found = [
        [(batch.first_offset, batch.last_offset) for batch in batches.overlapping(first, last)]
        for first, last in ((4, 5), (10, 19), (9, 20), (30, 40), (22, 23))
    ]
    assert found == [[(0, 4), (5, 9)], [], [(5, 9), (20, 29)], [], [(20, 29)]]


def test_split() -> None:
    batches = filled((0, 9))
    first = batches.first
    assert first is not None
    part = batches.split(first, 3, 5)
    assert (part.first_offset, part.last_offset, part.size_at_acquisition) == (3, 5, 10)
    assert ranges(batches) == [(0, 2), (3, 5), (6, 9)]


def test_archived_records_have_no_lock() -> None:
    batches = InFlightBatches()
    batch = InFlightBatch(0, 1, RecordState.ACQUIRED, 1, "m", 1000)
    batches.add(batch)
    batches.archive(batch)
    assert batch.is_terminal
    assert (batch.member_id, batch.deadline_ms) == ("", -1)
