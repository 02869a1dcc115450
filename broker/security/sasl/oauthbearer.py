"""The broker's side of OAUTHBEARER (RFC 7628, KIP-255): bearer tokens, and what makes one valid.

Mirrors Kafka's `OAuthBearerSaslServer`. The response to an invalid token is a reason in
JSON first; the client acknowledges it, and is refused then.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.broker.security.sasl.exchanges import AuthenticationRefused, Exchange, shown

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIRS = r"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
_FIRST = re.compile(rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_AUTH = re.compile(r"(?P<scheme>[a-zA-Z0-9_]+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")

# JSON can have one half of a pair, which no response and no log file takes.
_SURROGATE = re.compile("[\ud800-\udfff]")

_SEEN = b"\x01"


class ValidToken(NamedTuple):
    """Whose token it is, and until when."""

    name: str
    expires_at_ms: int


class InvalidToken(Exception):
    """`reason` is logged; the client learns that the token is not valid, or, with `scope`,
    that it does not reach so far."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.scope = scope


Validate = Callable[[str], ValidToken]
"""Raises InvalidToken."""


class OauthExchange(Exchange):
    """One exchange; `validate` decides."""

    def __init__(self, validate: Validate) -> None:
        super().__init__()
        self._validate = validate
        self._error: str | None = None
        self._reason = ""

    def step(self, token: bytes) -> bytes:
        if token == _SEEN and self._error is not None:
            raise AuthenticationRefused(f"OAUTHBEARER: {self._reason}", self._error)
        self._error = None
        match = _FIRST.fullmatch(token.decode(errors="replace"))
        if match is None:
            raise AuthenticationRefused("OAUTHBEARER: its first message is not valid")
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
        auth = _AUTH.fullmatch(pairs.get("auth", ""))
        if auth is None or auth["scheme"].lower() != "bearer":
            raise AuthenticationRefused("OAUTHBEARER: its first message has no bearer token")
        try:
            valid = self._validate(auth["token"])
        except InvalidToken as error:
            self._reason = error.reason
            status = "invalid_token" if error.scope is None else "insufficient_scope"
            scope = "" if error.scope is None else f', "scope":"{error.scope}"'
            self._error = f'{{"status":"{status}"{scope}}}'
            return self._error.encode()
        if _SURROGATE.search(valid.name):
            raise AuthenticationRefused("OAUTHBEARER: the name in its token is no text")
        authorization_id = match["authzid"]
        if authorization_id and authorization_id != valid.name:
            message = (
                f"Authentication failed: Client requested an authorization id ({authorization_id}) "
                f"that is different from the token's principal name ({valid.name})"
            )
            raise AuthenticationRefused(message, message)
        self.name, self.expires_at_ms = valid
        self.is_complete = True
        return b""


class UnsecuredTokens:
    """Tokens without a signature, which any client can make: for development only.

    Mirrors Kafka's default, `OAuthBearerUnsecuredValidatorCallbackHandler`, with its options.
    """

    def __init__(self, options: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        """`options` are those of the JAAS login. Raises ValueError."""
        prefix = "unsecuredValidator"
        self._now_ms = now_ms
        self._name_claim = options.get(f"{prefix}PrincipalClaimName", "").strip() or "sub"
        self._scope_claim = options.get(f"{prefix}ScopeClaimName", "").strip() or "scope"
        self._required_scope = options.get(f"{prefix}RequiredScope", "").split()
        skew = options.get(f"{prefix}AllowableClockSkewMs", "").strip() or "0"
        if not (skew.isascii() and skew.isdigit()):
            raise ValueError(f"{prefix}AllowableClockSkewMs is no number of milliseconds")
        self._skew_ms = int(skew)

    def validate(self, token: str) -> ValidToken:
        parts = token.split(".")
        if len(parts) != 3 or not parts[0] or not parts[1]:
            raise InvalidToken("its token does not have three parts")
        header, claims = _json(parts[0]), _json(parts[1])
        if header.get("alg") != "none" or parts[2]:
            raise InvalidToken(
                "its token is signed, and this listener takes only those that are not (the "
                "default of Kafka, for development)"
            )
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip():
            raise InvalidToken(f"its token has no claim {self._name_claim}")
        now_ms = self._now_ms()
        expires_ms, issued_ms = time_ms(claims, "exp"), time_ms(claims, "iat")
        if expires_ms is None:
            raise InvalidToken(f"the token of {shown(name)} has no time of expiry (exp)")
        if now_ms - self._skew_ms >= expires_ms:
            raise InvalidToken(f"the token of {shown(name)} has expired")
        if issued_ms is not None and (issued_ms > now_ms + self._skew_ms):
            raise InvalidToken(f"the token of {shown(name)} is issued in the future")
        if issued_ms is not None and expires_ms <= issued_ms:
            raise InvalidToken(f"the token of {shown(name)} expires before it is issued")
        self._check_scope(name, claims.get(self._scope_claim))
        return ValidToken(name, expires_ms)

    def _check_scope(self, name: str, claim: object) -> None:
        # A text is one scope, blanks or not, as in Kafka.
        listed = [claim] if isinstance(claim, str) else claim
        scopes = [str(each).strip() for each in listed] if isinstance(listed, list) else []
        if not set(self._required_scope) <= set(scopes):
            required = f"[{', '.join(self._required_scope)}]"
            raise InvalidToken(f"the token of {shown(name)} lacks a scope of {required}", required)


def _json(part: str) -> dict[str, object]:
    """A part of a token. Both alphabets of base64 are taken."""
    text = part.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise InvalidToken("a part of its token is no JSON in base64") from None
    if not isinstance(found, dict):
        raise InvalidToken("a part of its token is no JSON object")
    return found


def time_ms(claims: Mapping[str, object], name: str) -> int | None:
    """The milliseconds of a claim in seconds, None without it. Raises InvalidToken."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise InvalidToken(f"the claim {name} of its token is no time")
    return round(value * 1000)
