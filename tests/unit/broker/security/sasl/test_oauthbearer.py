"""The broker's side of OAUTHBEARER, and tokens without a signature."""

from __future__ import annotations

import base64
import json

import pytest

from ottla.broker.security.sasl.exchanges import AuthenticationRefused
from ottla.broker.security.sasl.oauthbearer import (
    InvalidToken,
    OauthExchange,
    UnsecuredTokens,
    ValidToken,
)

NOW_MS = 1_000_000_000
NOW = NOW_MS // 1000
GOOD = {"sub": "anna", "exp": NOW + 60, "iat": NOW - 5}


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def token(claims: object, header: object = None, signature: str = "") -> str:
    return f"{part({'alg': 'none'} if header is None else header)}.{part(claims)}.{signature}"


def tokens(**options: str) -> UnsecuredTokens:
    return UnsecuredTokens(
        {f"unsecuredValidator{name}": text for name, text in options.items()}, lambda: NOW_MS
    )


def first(text: str, authorization_id: str = "", more: str = "") -> bytes:
    return f"n,{authorization_id},\x01auth=Bearer {text}\x01{more}\x01".encode()


def test_a_valid_token() -> None:
    exchange = OauthExchange(tokens().validate)
    assert exchange.step(first(token(GOOD), "a=anna", "traceId=1\x01")) == b""
    assert exchange.is_complete
    assert (exchange.name, exchange.expires_at_ms) == ("anna", (NOW + 60) * 1000)


def test_the_reason_comes_first_then_the_refusal() -> None:
    exchange = OauthExchange(tokens(RequiredScope="read write").validate)
    response = exchange.step(first(token(GOOD | {"scope": ["read"]})))
    assert json.loads(response) == {"status": "insufficient_scope", "scope": "[read, write]"}
    with pytest.raises(AuthenticationRefused) as raised:
        exchange.step(b"\x01")
    assert raised.value.message == response.decode()
    assert "lacks a scope" in raised.value.reason
    again = OauthExchange(tokens().validate)
    assert again.step(first("x.y.z")) == b'{"status":"invalid_token"}'
    assert again.step(first(token(GOOD))) == b""


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"\xff",
    ],
)
def test_messages_that_are_none(message: bytes) -> None:
    with pytest.raises(AuthenticationRefused) as raised:
        OauthExchange(tokens().validate).step(message)
    assert raised.value.message is None


def test_no_user_may_act_for_another() -> None:
    with pytest.raises(AuthenticationRefused) as raised:
        OauthExchange(tokens().validate).step(first(token(GOOD), "a=bob"))
    assert raised.value.message == (
        "Authentication failed: Client requested an authorization id (bob) that is different from "
        "the token's principal name (anna)"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "three parts"),
        ("a.b", "three parts"),
        ("a..c", "three parts"),
        ("$.$.", "no JSON in base64"),
        (token([]), "no JSON object"),
        (token(GOOD, {"alg": "RS256"}), "is signed"),
        (token(GOOD, signature="abc"), "is signed"),
        (token({"exp": NOW + 5}), "no claim sub"),
        (token(GOOD | {"sub": " "}), "no claim sub"),
        (token({"sub": "anna"}), "no time of expiry"),
        (token(GOOD | {"exp": NOW}), "has expired"),
        (token(GOOD | {"exp": "soon"}), "is no time"),
        (token(GOOD | {"exp": True}), "is no time"),
        (token(GOOD | {"iat": NOW + 10}), "in the future"),
        (token(GOOD | {"iat": "x"}), "is no time"),
    ],
)
def test_tokens_that_are_not_valid(text: str, words: str) -> None:
    with pytest.raises(InvalidToken, match=words):
        tokens().validate(text)


def test_options() -> None:
    claims = {"name": "bob", "exp": NOW - 1, "iat": NOW - 9, "groups": "read"}
    made = tokens(
        PrincipalClaimName="name",
        ScopeClaimName="groups",
        RequiredScope="read",
        AllowableClockSkewMs="2000",
    )
    assert made.validate(token(claims)) == ("bob", (NOW - 1) * 1000)
    with pytest.raises(ValueError, match="AllowableClockSkewMs"):
        tokens(AllowableClockSkewMs="soon")


def test_a_name_that_is_no_text() -> None:
    """JSON can have half of a surrogate pair, which no response and no log file takes."""
    exchange = OauthExchange(lambda _: ValidToken("\ud800", 10**13))
    with pytest.raises(AuthenticationRefused, match="is no text"):
        exchange.step(first("x"))
