"""The console's page of events: the newest lines of the broker's own log."""

import json
import logging
from collections.abc import Iterator

import pytest

from ottla.broker.observability.console import event_log
from ottla.broker.observability.console.event_log import EventLog
from ottla.protocol.primitives import MAX_STRING_LENGTH


@pytest.fixture
def events() -> Iterator[EventLog]:
    made = EventLog()
    made.attach()
    yield made
    made.detach()


@pytest.fixture
def logger(events: EventLog, caplog: pytest.LogCaptureFixture) -> logging.Logger:
    caplog.set_level(logging.DEBUG, "ottla")
    return logging.getLogger("ottla.groups")


def texts(events: EventLog) -> list[str]:
    return [row["text"] for row in events.lines()]


def test_the_newest_line_comes_first(events: EventLog, logger: logging.Logger) -> None:
    logger.info("one %d", 1)
    logger.debug("not shown")
    logger.warning("two")
    assert texts(events) == ["two", "one 1"]
    row = events.lines()[0]
    assert json.loads(events.as_json())[0] == row
    assert (row["level"], row["from"]) == ("WARNING", "groups")
    assert row["time_ms"] > 1_600_000_000_000


def test_an_exception_and_a_wrong_format_are_shown(
    events: EventLog, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        raise OSError("disk full")
    except OSError:
        logger.exception("cannot write")
    record = logging.LogRecord("ottla.x", logging.INFO, "", 0, "%d", ("text",), None)
    events.emit(record)
    assert texts(events) == ["%d", "cannot write: disk full"]


def test_lines_rows_and_their_lengths_are_bounded(
    events: EventLog, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(event_log.MAX_LINES + 1):
        logger.info("%d", number)
    assert len(texts(events)) == event_log.MAX_ROWS
    assert texts(events)[0] == str(event_log.MAX_LINES)
    assert len(events._lines) == event_log.MAX_LINES
    logger.info("x" * 2 * event_log.MAX_LINE_CHARACTERS)
    assert len(texts(events)[0]) == event_log.MAX_LINE_CHARACTERS
    assert texts(events)[0].endswith("xx…")


def test_nothing_is_heard_after_the_end(events: EventLog, logger: logging.Logger) -> None:
    events.detach()
    logger.info("late")
    assert texts(events) == []


def test_lines_are_alike_only_if_they_have_words_in_common(
    events: EventLog, logger: logging.Logger
) -> None:
    logger.warning("%s", "the disk is full")
    logger.warning("%s: %5.1f", "z", 2)
    logger.warning("log %s rolled", "a-0")
    logger.warning("log a-1 rolled")
    assert [row["kind"] for row in events.lines()] == ["", "log %s rolled", "", ""]


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}"])
def test_the_text_for_another_broker_fits_into_a_string_of_the_protocol(
    events: EventLog, logger: logging.Logger, letter: str
) -> None:
    for number in range(event_log.MAX_ROWS):
        logger.info("%s", f"{number} {letter * event_log.MAX_LINE_CHARACTERS}")
    text = events.as_json()
    assert len(text.encode()) <= MAX_STRING_LENGTH
    rows = json.loads(text)
    assert rows
    assert rows == events.lines()[: len(rows)]
