"""Bearer tokens that an issuer has signed, and the issuer's keys (KIP-768).

The keys are a JSON Web Key Set at `sasl.oauthbearer.jwks.endpoint.url` (https, http or file). They
are read at the start, every `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and when a token names one
that is not known. Mirrors Kafka's `OAuthBearerValidatorCallbackHandler`.

PyJWT checks the signatures: `pip install 'ottla[oauth]'`. Only brokers with such a listener import
it.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.config.definitions import broker_settings, parse_value, split_list
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.sasl import oauth_text
from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.sasl.issuer_keys import IssuerKey, usable_keys
from ottla.broker.security.sasl.oauthbearer import InvalidToken, ValidToken, time_ms

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask

logger = logging.getLogger("ottla.security")

URL = "sasl.oauthbearer.jwks.endpoint.url"

# Keys of an issuer are a few kilobytes; a server that sends more is none.
MAX_BYTES = 1 << 20
FETCH_SECONDS = 10.0

# Tokens with unknown keys make this broker fetch the issuer's keys no more often than this.
LEAST_INTERVAL_SECONDS = 10.0


RunInThread = Callable[[Callable[[], None]], Awaitable[None]]


class TokenRules(NamedTuple):
    """The `sasl.oauthbearer.*` settings of a listener."""

    url: str
    audience: list[str]
    issuer: str | None
    clock_skew_seconds: int
    name_claim: str
    refresh_ms: int

    @classmethod
    def of(cls, config: BrokerConfig, listener_name: str, url: str) -> TokenRules:
        """Those of a listener win over the same settings without one. Raises ConfigError."""

        def text(name: str) -> str | None:
            return oauth_text(config, listener_name, f"sasl.oauthbearer.{name}")

        def number(name: str) -> int:
            setting = f"sasl.oauthbearer.{name}"
            value = parse_value(broker_settings()[setting], text(name))
            assert isinstance(value, int)
            return value

        return cls(
            url,
            split_list(text("expected.audience") or ""),
            text("expected.issuer"),
            number("clock.skew.seconds"),
            text("sub.claim.name") or "sub",
            number("jwks.endpoint.refresh.ms"),
        )


class SignedTokens:
    """Checks tokens against the keys that were read last. Loop only, but for `load`."""

    def __init__(self, rules: TokenRules, timer: DelayQueue, run_in_thread: RunInThread) -> None:
        """Raises ConfigError when PyJWT is missing or the address cannot be one of keys."""
        try:
            import jwt
        except ImportError:
            raise ConfigError(
                f"{URL} needs two more packages: pip install 'PyJWT>=2.9' cryptography."
            ) from None
        if not rules.url.startswith(("https://", "http://", "file://")):
            raise ConfigError(f"{URL}: {rules.url!r} is no address with https, http or file.")
        self._jwt: Any = jwt  # imported here, so a module for the type checker it is not
        self._rules = rules
        self._timer = timer
        self._run_in_thread = run_in_thread
        self._keys: dict[str | None, IssuerKey] = {}
        self._asked_at = -LEAST_INTERVAL_SECONDS
        self._refresh: TimerTask | None = None

    async def start(self) -> None:
        """Reads the keys. Raises ConfigError when there are none."""
        try:
            await self._run_in_thread(self.load)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{URL}: no keys can be read from {self._rules.url}: {error}"
            ) from None
        self._schedule()

    def stop(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            self._refresh = None

    def load(self) -> None:
        """Reads the keys again; blocks. Raises OSError and ValueError."""
        self._asked_at = monotonic()
        try:
            with urllib.request.urlopen(self._rules.url, timeout=FETCH_SECONDS) as response:
                data = response.read(MAX_BYTES + 1)
        except HTTPException as error:
            raise ValueError(f"the response is not HTTP: {error!r}") from None
        if len(data) > MAX_BYTES:
            raise ValueError(f"the response has more than {MAX_BYTES} bytes")
        found = json.loads(data)
        keys = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
            raise ValueError("it is no JSON Web Key Set")
        usable = usable_keys(self._jwt, keys)
        if not usable:
            raise ValueError("none of its keys is a public key for signatures")
        self._keys = usable

    def validate(self, token: str) -> ValidToken:
        """Raises InvalidToken."""
        jwt, rules = self._jwt, self._rules
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(key_id)
            if key is None:
                self._ask_again()
                raise InvalidToken(f"the issuer has no key {key_id!r:.100} ({URL})")
            claims = jwt.decode(
                token,
                key.public_key,
                algorithms=key.algorithms,
                audience=rules.audience or None,
                issuer=rules.issuer,
                leeway=rules.clock_skew_seconds,
                options={"require": ["exp", "iat"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise InvalidToken(f"its token is not valid: {error}") from None
        name = claims.get(rules.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise InvalidToken(f"its token has no claim {rules.name_claim}")
        return ValidToken(name.strip(), time_ms(claims, "exp") or 0)

    def _schedule(self) -> None:
        self.stop()
        self._refresh = self._timer.schedule(self._rules.refresh_ms, self._refresh_now)

    def _refresh_now(self) -> None:
        self._schedule()
        self._ask_again()

    def _ask_again(self) -> None:
        if monotonic() - self._asked_at >= LEAST_INTERVAL_SECONDS:
            self._asked_at = monotonic()
            spawn(self._reload(), name="oauth-keys")

    async def _reload(self) -> None:
        try:
            await self._run_in_thread(self.load)
        except (OSError, ValueError) as error:
            logger.warning("keeping the previous keys: cannot read %s: %s", URL, error)
