"""Bearer tokens for SASL OAUTHBEARER, by `OAuthOptions`. Blocking; every step has a deadline.

Nothing of a token, and nothing that it was got with, is in any error.
"""

from __future__ import annotations

import base64
import binascii
import json
import random
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.client.errors import AuthenticationError
from pyspark_ottla.options import oauth_options
from pyspark_ottla.options.oauth_options import OAuthOptions

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.error import HTTPError
    from urllib.request import Request

# A token is fetched again when so much of its life is over, as Kafka's clients do.
REFRESH_SHARE = 0.8
# After a failed fetch, a token with life left serves for so long before the next try; as Kafka's
# sasl.login.refresh.min.period.seconds.
REFRESH_PAUSE_SECONDS = 60.0
# How long a request to an endpoint that is busy or away is retried, as Kafka's clients do by
# sasl.login.retry.backoff.max.ms. Many processes may ask at once, so that their pauses differ.
ENDPOINT_RETRY_SECONDS = 10.0
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MAX_SECONDS = 2.0
# A response of a token endpoint is a few KiB.
RESPONSE_BYTES_MAX = 1 << 20
ERROR_WORDS_MAX = 200

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class Token(NamedTuple):
    """`lives_seconds` is None if the lifetime is unknown."""

    text: str
    lives_seconds: float | None


class TokenSource:
    """Gives a token that is still good, for as many connections as one client opens."""

    def __init__(self, options: OAuthOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._token = ""
        self._good_until = float("-inf")
        self._ends = float("-inf")

    def __call__(self) -> str:
        """Raises AuthenticationError when none can be fetched and the last one has ended."""
        now = self._clock()
        if now >= self._good_until:
            try:
                self._fetch(now)
            except AuthenticationError:
                if now >= self._ends:
                    raise
                self._good_until = min(now + REFRESH_PAUSE_SECONDS, self._ends)
        return self._token

    def _fetch(self, now: float) -> None:
        # A token with life left serves as well as a new one.
        retry_seconds = ENDPOINT_RETRY_SECONDS if now >= self._ends else 0.0
        token, lives_seconds = _GETTERS[self._options.kind](self._options, retry_seconds)
        if _TOKEN.fullmatch(token) is None:
            raise AuthenticationError(
                f"{_name_of(self._options)} gave something that is no bearer token"
            )
        if lives_seconds is None:
            lives_seconds = _lifetime_of(token)
        self._token, self._ends = token, now + (lives_seconds or 0)
        self._good_until = now + (lives_seconds or 0) * REFRESH_SHARE


def _name_of(options: OAuthOptions) -> str:
    words = {
        oauth_options.ENDPOINT: "the token endpoint",
        oauth_options.FILE: "the token file",
        oauth_options.FUNCTION: "the token function",
    }
    name = words.get(options.kind, "the token")
    # The query part of a URL may hold a secret.
    return f"{name} {options.source.partition('?')[0]}".rstrip()


def _lifetime_of(token: str) -> float | None:
    """By the claim `exp`, if the token is a JWT."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"]) - time.time()
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error, RecursionError):
        return None


# --- unsecured -----------------------------------------------------------------------------------


def _part(content: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def _unsecured(options: OAuthOptions, _: float) -> Token:
    """An unsigned JWT: the client states its own principal."""
    now = time.time()
    claims: dict[str, object] = {}
    for kind, name, value in options.claims:
        if kind == "Number":
            claims[name] = float(value)
        elif kind == "List":  # the first character stands between the elements
            claims[name] = value[1:].split(value[0]) if value else []
        else:
            claims[name] = value
    claims.setdefault("iat", now)
    claims.setdefault("exp", now + options.lifetime_seconds)
    return Token(f"{_part({'alg': 'none'})}.{_part(claims)}.", options.lifetime_seconds)


# --- from a file, from a function ----------------------------------------------------------------


def _from_file(options: OAuthOptions, _: float) -> Token:
    try:
        with open(options.source, encoding="ascii") as file:
            return Token(file.read(RESPONSE_BYTES_MAX).strip(), None)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise AuthenticationError(
            f"the token file {options.source} cannot be read: {why}"
        ) from None


def _from_function(options: OAuthOptions, _: float) -> Token:
    """The function gives a token, or a token and when it ends in seconds since 1970."""
    from pyspark_ottla.transform import load_function

    # Any: of what the user's function takes and gives nothing is known.
    function: Any = load_function(options.source, "kafka.sasl.oauthbearer.token.function")
    try:
        given: object = function()
    except Exception as error:
        # Its words may hold anything.
        raise AuthenticationError(
            f"{_name_of(options)} failed with {type(error).__name__}"
        ) from None
    match given:
        case str(text):
            return Token(text, None)
        case (str(text), int() | float() as ends):
            return Token(text, ends - time.time())
    raise AuthenticationError(
        f"{_name_of(options)} must give a token, or a token and when it ends (seconds since 1970)"
    )


# --- from an endpoint ----------------------------------------------------------------------------


def _request(options: OAuthOptions) -> Request:
    from urllib.parse import quote_plus, urlencode
    from urllib.request import Request

    credentials = (options.client_id, options.client_secret)
    if options.encodes_credentials:
        credentials = (quote_plus(options.client_id), quote_plus(options.client_secret))
    form = {"grant_type": "client_credentials"}
    if options.scope:
        form["scope"] = options.scope
    return Request(
        options.source,
        data=urlencode(form).encode(),
        headers={
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(":".join(credentials).encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )


def _from_endpoint(options: OAuthOptions, retry_seconds: float) -> Token:
    """The grant of client credentials (RFC 6749, 4.4), retried while it is busy or unreachable."""
    import ssl
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """The secret is for the address that the user has named."""

        def redirect_request(self, *_: object) -> None:
            return None

    opener = build_opener(NoRedirects)
    deadline, pause = time.monotonic() + retry_seconds, PAUSE_FIRST_SECONDS
    while True:
        try:
            with opener.open(_request(options), timeout=options.timeout_ms / 1000) as response:
                return _token_of(_content(response, options), options)
        except HTTPError as error:
            why = f"{error.code} {_words_of(error, options)}".rstrip()
            if error.code < 500 and error.code not in (408, 429):
                break
        except (OSError, HTTPException) as error:  # refused, TLS, timeout
            reason = getattr(error, "reason", error)
            why = str(reason)[:ERROR_WORDS_MAX]
            if isinstance(reason, ssl.SSLCertVerificationError):
                why = f"its certificate is not trusted ({reason.verify_message}); set SSL_CERT_FILE"
                break
        if time.monotonic() + pause > deadline:
            break
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, PAUSE_MAX_SECONDS)
    raise AuthenticationError(f"{_name_of(options)} gave no token: {why}")


def _content(response: HTTPResponse, options: OAuthOptions) -> bytes:
    """The whole of a bounded response, under one deadline."""
    deadline = time.monotonic() + options.timeout_ms / 1000
    parts: list[bytes] = []
    while part := response.read1(1 << 16):
        parts.append(part)
        if sum(map(len, parts)) > RESPONSE_BYTES_MAX:
            raise AuthenticationError(f"{_name_of(options)} sent far more than a token")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


def _token_of(content: bytes, options: OAuthOptions) -> Token:
    try:
        found = json.loads(content)
        text, lives_seconds = found["access_token"], found.get("expires_in")
        return Token(str(text), None if lives_seconds is None else float(lives_seconds))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise AuthenticationError(
            f"{_name_of(options)} sent no JSON with an access_token"
        ) from None


def _words_of(response: HTTPError, options: OAuthOptions) -> str:
    """The error text of the endpoint (RFC 6749, 5.2), without the secret if it repeats it."""
    try:
        found = json.loads(response.read(RESPONSE_BYTES_MAX))
        details = [str(found[key]) for key in ("error", "error_description") if key in found]
    except (OSError, TypeError, ValueError, RecursionError):
        return ""
    if any(options.client_secret in detail for detail in details):
        return ""
    return ": ".join(details)[:ERROR_WORDS_MAX]


_GETTERS: dict[str, Callable[[OAuthOptions, float], Token]] = {
    oauth_options.UNSECURED: _unsecured,
    oauth_options.FILE: _from_file,
    oauth_options.FUNCTION: _from_function,
    oauth_options.ENDPOINT: _from_endpoint,
}
