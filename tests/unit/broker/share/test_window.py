from ottla.broker.share.in_flight import InFlightBatch
from ottla.broker.share.persister import RecordState
from ottla.broker.share.window import InFlightWindow

AVAILABLE, ACKNOWLEDGED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED
ARCHIVED = RecordState.ARCHIVED


def window(*batches: tuple[int, int, int], start_offset: int = 0) -> InFlightWindow:
    made = InFlightWindow(start_offset)
    for first, last, state in batches:
        made.add(InFlightBatch(first, last, state, 1))
    made.records_became_available()
    return made


def test_an_empty_window_fetches_at_its_start() -> None:
    empty = window(start_offset=7)
    assert (empty.next_fetch_offset(), empty.in_flight_records) == (7, 0)


def test_the_next_fetch_begins_at_what_is_available_or_unknown() -> None:
    assert window((0, 4, ACKNOWLEDGED), (5, 9, AVAILABLE)).next_fetch_offset() == 5
    assert window((0, 4, RecordState.ACQUIRED), (8, 9, ACKNOWLEDGED)).next_fetch_offset() == 5
    assert window((0, 4, RecordState.ACQUIRED)).next_fetch_offset() == 5


def test_the_start_advances_over_what_is_delivered() -> None:
    made = window((0, 4, ACKNOWLEDGED), (5, 9, ARCHIVED), (10, 11, AVAILABLE))
    assert made.delivery_complete_count == 10
    assert made.advance()
    assert (made.start_offset, made.delivery_complete_count) == (10, 0)
    assert not made.advance()


def test_the_start_stays_below_offsets_that_are_not_known() -> None:
    made = window((0, 4, ACKNOWLEDGED), (8, 9, ACKNOWLEDGED))
    made.advance()
    assert made.start_offset == 5
    assert not made.advance()


def test_what_compaction_removed_is_archived() -> None:
    made = window((0, 4, RecordState.ACQUIRED), (5, 9, AVAILABLE))
    made.archive_missing(5, 15)
    assert [(batch.first_offset, batch.last_offset, batch.state) for batch in made.batches] == [
        (0, 4, RecordState.ACQUIRED),
        (5, 9, ARCHIVED),
        (10, 14, ARCHIVED),
    ]


def test_a_higher_log_start_offset() -> None:
    made = window((0, 4, RecordState.ACQUIRED), (5, 9, AVAILABLE))
    assert made.advance_to(7)
    assert not made.advance_to(7)
    assert [(batch.first_offset, batch.last_offset) for batch in made.batches] == [(7, 9)]
    assert made.advance_to(50)
    assert (made.start_offset, made.end_offset, made.next_fetch_offset()) == (50, 50, 50)


def test_room() -> None:
    made = window((0, 9, RecordState.ACQUIRED))
    assert not made.can_acquire(10)
    assert made.can_acquire(11)
