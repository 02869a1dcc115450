"""What makes the claims of a signed token valid.

Mirrors Kafka's `ValidatorAccessTokenValidator` and the validators of jose4j that it uses: `iat`
may lie ahead, as long as the token expires after it; an audience must be expected if the token
names one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.broker.security.sasl.exchanges import shown
from ottla.broker.security.sasl.oauthbearer import InvalidToken, ValidToken

# Seconds in a Java long; jose4j would take a longer number for another one.
_MAX_SECONDS = 1 << 62


class ClaimRules(NamedTuple):
    """`sasl.oauthbearer.expected.audience`, `.expected.issuer`, `.clock.skew.seconds` and the
    names of the claims of user and scopes."""

    audience: Sequence[str]
    issuer: str | None
    clock_skew_seconds: int
    name_claim: str
    scope_claim: str


def check_claims(claims: Mapping[str, object], rules: ClaimRules, now: int) -> ValidToken:
    """Whose token it is. `now` is in seconds since 1970. Raises InvalidToken."""
    expires_at = _check_times(claims, rules.clock_skew_seconds, now)
    _check_audience(claims, rules.audience)
    issuer = _text(claims, "iss")
    if rules.issuer is not None and issuer != rules.issuer:
        raise InvalidToken(
            f"the issuer of its token is {shown(issuer or '')}, not the expected one"
        )
    _text(claims, "sub")
    _text(claims, "jti")
    _check_scopes(claims.get(rules.scope_claim), rules.scope_claim)
    name = (_text(claims, rules.name_claim) or "").strip()
    if not name:
        raise InvalidToken(f"its token has no claim {rules.name_claim}")
    return ValidToken(name, expires_at * 1000)


def _check_times(claims: Mapping[str, object], skew: int, now: int) -> int:
    """Returns the expiry, in seconds since 1970."""
    expires_at, issued_at, begins_at = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
    if expires_at is None:
        raise InvalidToken("its token has no time of expiry (exp)")
    if issued_at is None:
        raise InvalidToken("its token does not say when it was issued (iat)")
    if now - skew >= expires_at:
        raise InvalidToken(f"its token expired {now - expires_at} s ago")
    if expires_at < issued_at or issued_at < 0:
        raise InvalidToken("its token expires before it is issued")
    if begins_at is not None and expires_at < begins_at:
        raise InvalidToken("its token expires before it becomes valid (nbf)")
    if begins_at is not None and now + skew < begins_at:
        raise InvalidToken(f"its token is valid in {begins_at - now} s only (nbf)")
    return expires_at


def _check_audience(claims: Mapping[str, object], expected: Sequence[str]) -> None:
    named = claims.get("aud")
    if named is None:
        if expected:
            raise InvalidToken("its token names no audience (aud)")
        return
    audience = [named] if isinstance(named, str) else named
    if not isinstance(audience, list) or not all(isinstance(each, str | None) for each in audience):
        raise InvalidToken("the audience of its token (aud) is no text and no list of texts")
    if not set(audience) & set(expected):
        raise InvalidToken(
            "the audience of its token (aud) is none of sasl.oauthbearer.expected.audience"
        )


def _check_scopes(claim: object, name: str) -> None:
    """A text is one scope, blanks or not, as in Kafka."""
    listed = [claim] if isinstance(claim, str) else claim
    if not isinstance(listed, list):
        return
    scopes = [each.strip() if isinstance(each, str) else "" for each in listed]
    if not all(scopes):
        raise InvalidToken(f"a scope of its token ({name}) is empty or no text")
    if len(set(scopes)) != len(scopes):
        raise InvalidToken(f"its token has a scope twice ({name})")


def _text(claims: Mapping[str, object], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidToken(f"the claim {name} of its token is no text")
    return value


def _seconds(claims: Mapping[str, object], name: str) -> int | None:
    """Without the fraction."""
    value = claims.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < _MAX_SECONDS
    ):
        raise InvalidToken(f"the claim {name} of its token is no time")
    return int(value)
