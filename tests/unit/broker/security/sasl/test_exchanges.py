"""The broker's side of PLAIN and SCRAM, with the example of RFC 7677."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.security.sasl import scram_credentials
from ottla.broker.security.sasl.exchanges import (
    AuthenticationRefused,
    PlainExchange,
    ScramExchange,
)
from ottla.broker.security.sasl.scram_credentials import (
    ScramCredential,
    ScramCredentials,
    TokenLogin,
)
from ottla.protocol.client.errors import AuthenticationError
from ottla.protocol.client.sasl import ScramMechanism
from tests.doubles.rfc7677 import CHALLENGE, FINAL, FIRST, SALT, SERVER_NONCE, SIGNATURE

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


USERS = {"user": scram_credentials.from_password(SHA_256, "pencil", salt=SALT)}


def rfc_exchange() -> ScramExchange:
    return ScramExchange(
        SHA_256, lambda mechanism, user: USERS.get(user), nonce=lambda: SERVER_NONCE
    )


def test_the_example_of_the_rfc() -> None:
    exchange = rfc_exchange()
    assert exchange.step(FIRST) == CHALLENGE
    assert not exchange.is_complete
    assert exchange.step(FINAL) == SIGNATURE
    assert exchange.is_complete
    assert exchange.name == "user"
    assert exchange.expires_at_ms is None


def refusal(exchange: PlainExchange | ScramExchange, *tokens: bytes) -> AuthenticationRefused:
    *before, last = tokens
    for token in before:
        exchange.step(token)
    with pytest.raises(AuthenticationRefused) as raised:
        exchange.step(last)
    assert not exchange.is_complete
    return raised.value


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([b"n,,n=absent,r=abc"], "no SCRAM-SHA-256 credential"),
        ([b"y,,n=user,r=abc"], "first message"),
        ([b"n,,n=us=er,r=abc"], "first message"),
        ([b"\xff\xfe"], "first message"),
        ([b"n,,n=user,r=abc,tokenauth=true"], "no delegation token"),
        ([FIRST, b"c=biws,r=other,p=AAAA"], "another nonce"),
        ([FIRST, FINAL[:-4] + b"AAA="], "wrong password"),
        ([FIRST, FINAL.replace(b"dHzb", b"")], "proof is not valid"),
        ([FIRST, b"what"], "final message"),
    ],
)
def test_what_fails_is_logged_and_not_sent_to_the_client(tokens: list[bytes], reason: str) -> None:
    error = refusal(rfc_exchange(), *tokens)
    assert reason in error.reason
    assert error.message is None


def test_no_user_may_act_for_another() -> None:
    message = refusal(rfc_exchange(), b"n,a=other,n=user,r=abc").message
    assert message is not None
    assert "different from username" in message
    assert rfc_exchange().step(b"n,a=user,n=user,r=abc")


def test_too_few_iterations_are_refused() -> None:
    weak = scram_credentials.from_password(SHA_256, "pencil", iterations=100)
    exchange = ScramExchange(SHA_256, lambda mechanism, user: weak)
    assert "fewer than 4096" in refusal(exchange, b"n,,n=user,r=abc").reason


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_delegation_token_stands_for_its_owner(mechanism: str) -> None:
    secret = "c2VjcmV0"
    login = TokenLogin(scram_credentials.from_password(mechanism, secret), "anna", 5000)
    client = ScramMechanism(mechanism, "token-id", secret)
    exchange = ScramExchange(
        mechanism,
        lambda asked, user: None,
        lambda asked, token_id: login if token_id == "token-id" else None,
    )
    # Our client has no tokens: the extension is put in by hand, on both sides of the proof.
    client._first_bare += ",tokenauth=true"
    response = client.step(exchange.step(client.first()))
    assert response is not None
    client.step(exchange.step(response))
    assert client.done
    assert (exchange.name, exchange.expires_at_ms, exchange.is_token) == ("anna", 5000, True)


names = st.text("aZ09=,.- \x01~", min_size=1, max_size=20)
passwords = st.text("aZ0 ,=\u00e4\u20ac\U0001f600", min_size=1, max_size=3)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(names, passwords, passwords, st.sampled_from([SHA_256, SHA_512]))
def test_our_client_gets_in_with_the_right_password_only(
    user: str, password: str, other: str, mechanism: str
) -> None:
    credential = scram_credentials.from_password(mechanism, password, salt=b"salt")
    exchange = ScramExchange(mechanism, lambda _, name: credential if name == user else None)
    client = ScramMechanism(mechanism, user, other)
    final = client.step(exchange.step(client.first()))
    assert final is not None
    if other == password:
        client.step(exchange.step(final))
        assert exchange.name == user
    else:
        refusal(exchange, final)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3), st.booleans())
def test_any_bytes_are_refused_with_a_reason(tokens: list[bytes], begins_well: bool) -> None:
    exchange = rfc_exchange()
    if begins_well:
        exchange.step(FIRST)
    with suppress(AuthenticationRefused):
        for token in tokens:
            exchange.step(token)
    assert not exchange.is_complete


def test_a_client_that_is_lied_to_notices() -> None:
    client = ScramMechanism(SHA_256, "user", "pencil")
    exchange = ScramExchange(
        SHA_256, lambda mechanism, user: ScramCredential(SALT, b"x" * 32, b"y" * 32, 4096)
    )
    challenge = exchange.step(client.first())
    assert client.step(challenge)
    with pytest.raises(AuthenticationError):
        client.step(b"v=AAAA")


# PLAIN


def plain(token: bytes) -> PlainExchange:
    exchange = PlainExchange(lambda: {"anna": "s3cret", "b\u00e4r": "p\u00e4ss"})
    assert exchange.step(token) == b""
    return exchange


def test_plain() -> None:
    assert plain(b"\0anna\0s3cret").name == "anna"
    assert plain(b"anna\0anna\0s3cret").is_complete
    assert plain("\0b\u00e4r\0p\u00e4ss".encode()).name == "b\u00e4r"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0anna", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0s3cret", "Authentication failed: username not specified"),
        (b"\0anna\0", "Authentication failed: password not specified"),
        (b"\0anna\0secret", "Authentication failed: Invalid username or password"),
        (b"\0absent\0s3cret", "Authentication failed: Invalid username or password"),
        (
            b"other\0anna\0s3cret",
            "Authentication failed: Client requested an authorization id that is different from "
            "username",
        ),
    ],
)
def test_plain_refusals_in_kafkas_words(token: bytes, message: str) -> None:
    error = refusal(PlainExchange(lambda: {"anna": "s3cret"}), token)
    assert error.message == message
    assert "s3cret" not in error.reason


# Credentials as they are stored.


def test_credentials_have_kafkas_form() -> None:
    text = scram_credentials.encode_credential(ScramCredential(b"a", b"b", b"c", 8192))
    assert text == "salt=YQ==,stored_key=Yg==,server_key=Yw==,iterations=8192"
    assert scram_credentials.decode_credential(text) == ScramCredential(b"a", b"b", b"c", 8192)


def test_credentials_follow_the_settings_of_users() -> None:
    known = ScramCredentials()
    text = scram_credentials.encode_credential(ScramCredential(b"a", b"b", b"c", 8192))
    known.apply("users", "b%C3%A4r", {SHA_256: text, "producer_byte_rate": "1"})
    assert known.get(SHA_256, "b\u00e4r") == ScramCredential(b"a", b"b", b"c", 8192)
    assert known.get(SHA_512, "b\u00e4r") is None
    known.apply("users", "b%C3%A4r/clients/c", {})
    known.apply("clients", "b%C3%A4r", {})
    assert known.get(SHA_256, "b\u00e4r") is not None
    (problem,) = known.apply("users", "b%C3%A4r", {SHA_512: text, SHA_256: "salt=%,hunter2"})
    assert known.get(SHA_256, "b\u00e4r") is None
    assert known.get(SHA_512, "b\u00e4r") is not None
    assert problem.startswith("the SCRAM-SHA-256 credential of user b\u00e4r cannot be used: ")
    assert "hunter2" not in problem
    known.apply("users", "b%C3%A4r", {})
    assert known.get(SHA_512, "b\u00e4r") is None
