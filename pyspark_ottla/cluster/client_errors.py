"""Failed requests and refused connections as ConnectorErrors."""

from __future__ import annotations

import platform

from ottla.protocol.client.errors import (
    AuthenticationError,
    BadResponseError,
    ClientError,
    UnsupportedApiError,
)
from ottla.protocol.errors import RETRIABLE, ErrorCode, KafkaError, error_name
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

_CONDITIONS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: errors.NOT_AUTHORIZED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: errors.NOT_AUTHORIZED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: errors.NOT_AUTHORIZED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: errors.NOT_AUTHORIZED,
    ErrorCode.INVALID_TOPIC_EXCEPTION: errors.INVALID_TOPIC,
    ErrorCode.MESSAGE_TOO_LARGE: errors.RECORD_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: errors.RECORD_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP: errors.TIMESTAMP_REFUSED,
}
INVALID_TOPIC_HINT = "A topic name has 1 to 249 letters, digits and . _ -, and is not . or .."


def condition_of(code: int, other: str) -> str:
    """The condition for an error code of a broker; `other` if the code has none of its own."""
    return _CONDITIONS.get(code, other)


def refused(what: str, code: int) -> ConnectorError:
    """The error for a response with an error code that is final, or was repeated for too long."""
    outage = errors.BROKER_UNAVAILABLE if code in RETRIABLE else errors.FETCH_FAILED
    condition = condition_of(code, outage)
    if condition == errors.NOT_AUTHORIZED:
        return ConnectorError(
            condition,
            f"{what} is not allowed ({error_name(code)})",
            "Ask for the permission, or check under which user the job connects",
        )
    hint = INVALID_TOPIC_HINT if condition == errors.INVALID_TOPIC else ""
    return ConnectorError(condition, f"{what} failed ({error_name(code)})", hint)


def unreachable(what: str, bootstrap: str, error: Exception) -> ConnectorError:
    """The error for brokers that cannot be reached; the client's error names the broker."""
    if isinstance(error, AuthenticationError):
        return ConnectorError(
            errors.AUTHENTICATION_FAILED,
            str(error).rstrip("."),
            "Check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*",
        )
    if isinstance(error, KafkaError) and not error.retriable:
        return refused(what, error.code)
    if isinstance(error, (UnsupportedApiError, BadResponseError)):
        return ConnectorError(errors.BROKER_INCOMPATIBLE, f"{what} failed: {error}")
    hint = advertised_hint(bootstrap, error)
    return ConnectorError(
        errors.BROKER_UNAVAILABLE,
        f"{what} failed: {error}",
        hint or f"Check kafka.bootstrap.servers ({bootstrap}) and whether the brokers run",
    )


def advertised_hint(bootstrap: str, error: Exception) -> str:
    """What to check if the address is one that brokers returned; empty if it is one of the
    bootstrap servers, or no address is to blame."""
    broker = error.broker if isinstance(error, ClientError) else ""
    if not broker or broker in bootstrap.split(","):
        return ""
    return (
        f"{broker} is none of kafka.bootstrap.servers ({bootstrap}) but the address that the "
        "broker itself returned: check that the broker runs and that its advertised.listeners is "
        f"an address that {platform.node()} can reach"
    )
