"""Failed requests and refused connections as ConnectorErrors."""

from __future__ import annotations

import platform

from ottla.protocol.client.errors import (
    AuthenticationError,
    BadResponseError,
    ClientError,
    UnsupportedApiError,
)
from ottla.protocol.errors import ErrorCode, error_name
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

_FORBIDDEN = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def refused(what: str, code: int) -> ConnectorError:
    """The error for a response with an error code that is not retriable."""
    if code in _FORBIDDEN:
        return ConnectorError(
            errors.NOT_AUTHORIZED,
            f"{what} is not allowed ({error_name(code)})",
            "Ask for the permission, or check under which user the job connects",
        )
    return ConnectorError(errors.FETCH_FAILED, f"{what} failed ({error_name(code)})")


def unreachable(what: str, bootstrap: str, error: Exception) -> ConnectorError:
    """The error for brokers that cannot be reached; the client's error names the broker."""
    if isinstance(error, AuthenticationError):
        return ConnectorError(
            errors.AUTHENTICATION_FAILED,
            str(error).rstrip("."),
            "Check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*",
        )
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
