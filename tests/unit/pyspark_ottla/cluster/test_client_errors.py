"""Errors of the client in the words and under the names that a job sees."""

import pytest

from ottla.protocol.client.errors import (
    AuthenticationError,
    BadResponseError,
    BrokerConnectionError,
    UnsupportedApiError,
)
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import refused, unreachable


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ],
)
def test_what_is_forbidden(code: int) -> None:
    error = refused("reading t", code)
    assert errors.NOT_AUTHORIZED in str(error)
    assert "reading t is not allowed" in str(error)
    assert error_name(code) in str(error)


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, errors.INVALID_TOPIC),
        (ErrorCode.MESSAGE_TOO_LARGE, errors.RECORD_TOO_LARGE),
        (ErrorCode.INVALID_TIMESTAMP, errors.TIMESTAMP_REFUSED),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, errors.NOT_AUTHORIZED),
        (ErrorCode.LEADER_NOT_AVAILABLE, errors.BROKER_UNAVAILABLE),
    ],
)
def test_the_condition_is_that_of_the_code(code: int, condition: str) -> None:
    assert refused("reading t", code).condition == condition
    if code != ErrorCode.LEADER_NOT_AVAILABLE:
        assert unreachable("reading t", "b:9092", KafkaError(code)).condition == condition


def test_any_other_code_is_named() -> None:
    error = refused("reading t", ErrorCode.UNKNOWN_SERVER_ERROR)
    assert errors.FETCH_FAILED in str(error)
    assert "UNKNOWN_SERVER_ERROR" in str(error)


@pytest.mark.parametrize(
    ("problem", "condition", "words"),
    [
        (AuthenticationError("wrong password."), errors.AUTHENTICATION_FAILED, "kafka.sasl.*"),
        (UnsupportedApiError("no Fetch"), errors.BROKER_INCOMPATIBLE, "no Fetch"),
        (BadResponseError("cut off"), errors.BROKER_INCOMPATIBLE, "cut off"),
        (OSError("refused"), errors.BROKER_UNAVAILABLE, "b:9092"),
    ],
)
def test_brokers_that_cannot_be_used(problem: Exception, condition: str, words: str) -> None:
    error = unreachable("listing offsets", "b:9092", problem)
    assert condition in str(error)
    assert words in str(error)


def test_an_address_that_a_broker_returned() -> None:
    inner = BrokerConnectionError("cannot connect", broker="10.0.0.7:9092")
    assert "advertised.listeners" in str(unreachable("listing offsets", "b:9092,c:9092", inner))
    given = BrokerConnectionError("cannot connect", broker="c:9092")
    assert "advertised.listeners" not in str(unreachable("listing", "b:9092,c:9092", given))
