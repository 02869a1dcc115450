"""The SASL part of opening a connection, request by request."""

from __future__ import annotations

from typing import cast

import pytest

from ottla.protocol.client.authentication import Authentication
from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import SaslMechanism
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


class TwoSteps:
    """A mechanism that sends two tokens and knows what the broker has to prove."""

    name = "TWO-STEPS"

    def __init__(self) -> None:
        self.done = False

    def first(self) -> bytes:
        return b"first"

    def step(self, challenge: bytes) -> bytes | None:
        if challenge == b"challenge":
            return b"second"
        if challenge != b"proof":
            raise AuthenticationError("the broker does not know the password")
        self.done = True
        return None


@pytest.fixture
def exchange() -> Authentication:
    return Authentication("b:1", cast(SaslMechanism, TwoSteps()))


def sasl_response(token: bytes, lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)


def test_the_whole_exchange(exchange: Authentication) -> None:
    assert exchange.first() == SaslHandshakeRequest(mechanism="TWO-STEPS")
    accepted = SaslHandshakeResponse(0, ["PLAIN", "TWO-STEPS"])
    assert exchange.on_response(accepted) == SaslAuthenticateRequest(auth_bytes=b"first")
    second = exchange.on_response(sasl_response(b"challenge", 1))
    assert second == SaslAuthenticateRequest(auth_bytes=b"second")
    assert exchange.session_lifetime_ms == 0, "only the last response counts"
    assert exchange.on_response(sasl_response(b"proof", 60_000)) is None
    assert exchange.session_lifetime_ms == 60_000


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["A", "B"]), "A, B"),
        (SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, []), "none"),
        (SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong"), "wrong"),
        (
            SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, None),
            "SASL_AUTHENTICATION_FAILED",
        ),
        (sasl_response(b"forged"), "does not know the password"),
    ],
)
def test_a_refusal_names_broker_and_reason(
    exchange: Authentication,
    response: SaslHandshakeResponse | SaslAuthenticateResponse,
    words: str,
) -> None:
    with pytest.raises(AuthenticationError) as refused:
        exchange.on_response(response)
    assert words in str(refused.value)
    assert "b:1" in str(refused.value)
    assert refused.value.broker == "b:1"
