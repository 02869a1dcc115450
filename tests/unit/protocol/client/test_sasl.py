"""SASL exchanges, with the example of RFC 7677."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import cast

import pytest

from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import (
    Authentication,
    BearerMechanism,
    PlainMechanism,
    SaslMechanism,
    ScramMechanism,
    mechanism_factory,
)
from ottla.protocol.client.security import Security
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.doubles.rfc7677 import CHALLENGE, CLIENT_NONCE, FINAL, SIGNATURE


def example() -> ScramMechanism:
    return ScramMechanism("SCRAM-SHA-256", "user", "pencil", nonce=CLIENT_NONCE)


def test_the_example_of_the_rfc() -> None:
    exchange = example()
    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.step(CHALLENGE) == FINAL
    assert not exchange.done
    assert exchange.step(SIGNATURE) is None
    assert exchange.done


def test_sha_512_against_a_scripted_server() -> None:
    exchange = ScramMechanism("SCRAM-SHA-512", "a=b,c", "p\u00e4ss")
    first = exchange.first().decode()
    assert first.startswith("n,,n=a=3Db=2Cc,r=")
    bare = first[3:]
    nonce = bare.partition(",r=")[2] + "server"
    challenge = f"r={nonce},s={base64.b64encode(b'salt').decode()},i=4096"
    final = exchange.step(challenge.encode())
    assert final is not None
    without_proof, _, proof = final.decode().rpartition(",p=")
    message = f"{bare},{challenge},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac("sha512", "p\u00e4ss".encode(), b"salt", 4096)
    key = hmac.digest(salted, b"Client Key", "sha512")
    signature = hmac.digest(hashlib.sha512(key).digest(), message, "sha512")
    sent = base64.b64decode(proof)
    assert bytes(a ^ b for a, b in zip(sent, signature, strict=True)) == key
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), message, "sha512")
    assert exchange.step(b"v=" + base64.b64encode(server)) is None
    assert exchange.done


def test_nonces_differ() -> None:
    assert len({ScramMechanism("SCRAM-SHA-256", "u", "p").first() for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"e=unknown-user", "unknown-user"),
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "another nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "another nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=***,i=4096", "no valid s="),
        (b"r=rOprNGfwEbeRWgbNEkqOx,i=4096", "no valid s="),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==", "not a number"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=x", "not a number"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095", "not within"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=9999999", "not within"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999", "not a number"),
        (b"garbage", "no valid message"),
        (b"\xff\xfe=1", "no valid message"),
        (b"", "no valid message"),
    ],
)
def test_challenges_that_are_refused(challenge: bytes, words: str) -> None:
    with pytest.raises(AuthenticationError, match=words):
        example().step(challenge)


@pytest.mark.parametrize("final", [b"v=" + base64.b64encode(bytes(32)), b"v=!!", b"x=1"])
def test_broker_that_does_not_know_the_password(final: bytes) -> None:
    exchange = example()
    exchange.step(CHALLENGE)
    with pytest.raises(AuthenticationError):
        exchange.step(final)
    assert not exchange.done


def test_factory() -> None:
    assert mechanism_factory(None) is None
    assert mechanism_factory(Security()) is None
    plain = mechanism_factory(Security("SASL_SSL", mechanism="PLAIN", username="u", password="p"))
    assert plain is not None
    assert isinstance(plain(), PlainMechanism)
    assert plain() is not plain()
    scram = mechanism_factory(
        Security("SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username="u", password="p")
    )
    assert scram is not None
    assert scram().name == "SCRAM-SHA-512"


def test_a_bearer_token_with_extensions() -> None:
    exchange = BearerMechanism("abc.def.", (("traceId", "7"),))
    assert exchange.first() == b"n,,\x01auth=Bearer abc.def.\x01traceId=7\x01\x01"
    assert exchange.step(b"") is None
    assert exchange.done


def test_a_bearer_token_that_is_refused() -> None:
    """The broker says why in a challenge, and wants that acknowledged before it hangs up."""
    exchange = BearerMechanism("abc")
    assert exchange.step(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationError, match="continues the exchange"):
        exchange.step(b'{"status":"invalid_token"}')
    assert not exchange.done


def test_each_connection_requests_a_token() -> None:
    tokens = iter(["one", "two"])
    factory = mechanism_factory(
        Security("SASL_SSL", mechanism="OAUTHBEARER", token=lambda: next(tokens))
    )
    assert factory is not None
    assert [b"Bearer " + word in factory().first() for word in (b"one", b"two")] == [True, True]
    with pytest.raises(ValueError, match="OAUTHBEARER needs a provider of tokens"):
        Security("SASL_SSL", mechanism="OAUTHBEARER")


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
