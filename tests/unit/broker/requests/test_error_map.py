from __future__ import annotations

import logging

import pytest

from ottla.broker.requests.error_responses import error_code, error_message
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.records import errors as records
from ottla.storage import errors as storage


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "words"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (records.CorruptRecordError("x"), ErrorCode.CORRUPT_MESSAGE),
        (storage.LogDirectoryOffline("/disk", "x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ProtocolError("x"), ErrorCode.INVALID_REQUEST),
        (PermissionError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (TimeoutError(), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_what_is_foreseen(error: Exception, code: int) -> None:
    assert error_code(error) == code


def test_a_subclass_without_a_line_gets_the_code_of_its_base() -> None:
    class Odd(records.InvalidRecordError):
        pass

    assert error_code(Odd("x")) == ErrorCode.INVALID_RECORD


def test_unforeseen_errors_are_logged_and_hidden(caplog: pytest.LogCaptureFixture) -> None:
    error = ZeroDivisionError("inner workings")
    with caplog.at_level(logging.ERROR):
        assert error_code(error) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "the client gets UNKNOWN_SERVER_ERROR" in caplog.text
    assert error_message(error) is None


def test_words_are_for_clients_only_when_they_concern_them() -> None:
    assert error_message(KafkaError(3, "words")) == "words"
    assert error_message(KafkaError(3)) is None
    assert error_message(records.InvalidRecordError("no key")) == "no key"
    assert error_message(PermissionError(13, "/secret/path")) is None


def every_subclass(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*(every_subclass(each) for each in cls.__subclasses__()))


def test_every_error_of_the_log_and_of_records_is_foreseen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bases aside, and what no client gets to see: errors of the start and of followers."""
    never_seen = {"StorageError", "ProducerError", "DirectoryInUse"}
    never_seen |= {"UnexpectedAppendOffset", "OffsetsOutOfOrder"}
    for base in (records.RecordsError, storage.StorageError):
        for cls in every_subclass(base):
            if cls.__name__ not in never_seen and cls.__module__.startswith(
                ("protocol", "storage")
            ):
                assert error_code(cls.__new__(cls)) != ErrorCode.UNKNOWN_SERVER_ERROR, cls
    assert caplog.text == ""
