import pytest

from ottla.protocol.errors import (
    RETRIABLE,
    ErrorCode,
    KafkaError,
    ProtocolError,
    UnsupportedVersionError,
    error_name,
    is_retriable,
)

CODES = {name: code for name, code in vars(ErrorCode).items() if isinstance(code, int)}


def test_codes_are_those_of_kafka_3_9() -> None:
    # and two of Kafka 4: for subscriptions by pattern and for share sessions
    assert sorted(CODES.values()) == [*range(-1, 128), 128, 133]
    assert CODES["UNKNOWN_SERVER_ERROR"] == -1
    assert CODES["NOT_LEADER_OR_FOLLOWER"] == 6
    assert CODES["UNSUPPORTED_VERSION"] == 35
    assert CODES["FETCH_SESSION_ID_NOT_FOUND"] == 70
    assert CODES["UNSTABLE_OFFSET_COMMIT"] == 88
    assert CODES["TELEMETRY_TOO_LARGE"] == 118


def test_names() -> None:
    assert error_name(ErrorCode.REBALANCE_IN_PROGRESS) == "REBALANCE_IN_PROGRESS"
    assert error_name(9999) == "UNKNOWN_ERROR_CODE(9999)"


@pytest.mark.parametrize(
    ("code", "retriable"),
    [
        (ErrorCode.NONE, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, True),
        (ErrorCode.OFFSET_OUT_OF_RANGE, False),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, True),
    ],
)
def test_retriable(code: int, retriable: bool) -> None:
    assert is_retriable(code) is retriable
    assert (code in RETRIABLE) is retriable
    assert KafkaError(code).retriable is retriable


def test_kafka_error_says_its_name_and_message() -> None:
    error = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the name is empty")
    assert error.name == "INVALID_TOPIC_EXCEPTION"
    assert str(error) == "INVALID_TOPIC_EXCEPTION: the name is empty"
    assert str(KafkaError(ErrorCode.NONE)) == "NONE"


def test_protocol_error_names_the_place() -> None:
    error = ProtocolError("is null", api="FetchRequest", version=4, field="topics.topic")
    assert str(error) == "FetchRequest version 4, field topics.topic: is null"
    assert (error.api, error.version, error.field, error.reason) == (
        "FetchRequest",
        4,
        "topics.topic",
        "is null",
    )
    assert str(ProtocolError("too large", api="frame")) == "frame: too large"
    assert str(ProtocolError("odd", field="size")) == "field size: odd"
    assert str(ProtocolError("odd")) == "odd"


def test_unsupported_versions_are_protocol_errors() -> None:
    assert issubclass(UnsupportedVersionError, ProtocolError)
