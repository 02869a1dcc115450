"""Bearer tokens that an issuer has signed, and the issuer's keys (KIP-768).

The keys are a JSON Web Key Set at `sasl.oauthbearer.jwks.endpoint.url` (https, http or file). They
are read at the start, every `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and when a token names one
that is not known. Mirrors Kafka's `OAuthBearerValidatorCallbackHandler`.

PyJWT checks the signatures: `pip install 'ottla[oauth]'`. Only brokers with such a listener import
it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.config.definitions import broker_settings, parse_value, split_list
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.sasl import oauth_text
from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.sasl.exchanges import AuthenticationWaits
from ottla.broker.security.sasl.issuer_keys import (
    ALGORITHMS,
    IssuerKey,
    select_key,
    usable_keys,
)
from ottla.broker.security.sasl.oauthbearer import InvalidToken, ValidToken
from ottla.broker.security.sasl.token_claims import ClaimRules, check_claims

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask

logger = logging.getLogger("ottla.security")

URL = "sasl.oauthbearer.jwks.endpoint.url"

# Keys of an issuer are a few kilobytes; a server that sends more is none.
MAX_BYTES = 1 << 20
FETCH_SECONDS = 10.0

# Tokens with unknown keys make this broker fetch the issuer's keys no more often than this in the
# long run, and a few times at once: the first token after a rotation is not to wait for others'.
LEAST_INTERVAL_SECONDS = 10.0
_FETCHES_AT_ONCE = 5

# Clients that wait for the issuer's keys. More of them are rejected at once, and may try again.
_MAX_WAITING = 1000
_READ_BYTES = 65_536


RunInThread = Callable[[Callable[[], None]], Awaitable[None]]


class TokenRules(NamedTuple):
    """The `sasl.oauthbearer.*` settings of a listener."""

    url: str
    claims: ClaimRules
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
            ClaimRules(
                split_list(text("expected.audience") or ""),
                text("expected.issuer"),
                number("clock.skew.seconds"),
                text("sub.claim.name") or "sub",
                text("scope.claim.name") or "scope",
            ),
            number("jwks.endpoint.refresh.ms"),
        )


class _Fetches:
    """Whether tokens with unknown keys may make the broker fetch keys now."""

    def __init__(self) -> None:
        self._left = float(_FETCHES_AT_ONCE)
        self._counted_at = monotonic()
        self._missing: dict[object, float] = {}

    def may_fetch(self, key_id: object) -> bool:
        """Not again for a key that was missing a moment ago. Counts a fetch."""
        now = monotonic()
        if now - self._missing.get(key_id, -LEAST_INTERVAL_SECONDS) < LEAST_INTERVAL_SECONDS:
            return False
        if LEAST_INTERVAL_SECONDS > 0:
            refilled = self._left + (now - self._counted_at) / LEAST_INTERVAL_SECONDS
            self._left = min(refilled, float(_FETCHES_AT_ONCE))
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        if len(self._missing) > _FETCHES_AT_ONCE:
            del self._missing[next(iter(self._missing))]
        self._missing.pop(key_id, None)
        self._missing[key_id] = now
        return True


class SignedTokens:
    """Checks tokens against the keys that were read last. Loop only, but for `load`."""

    def __init__(
        self,
        rules: TokenRules,
        timer: DelayQueue,
        run_in_thread: RunInThread,
        now: Callable[[], float] = time,
    ) -> None:
        """`now` is in seconds since 1970. Raises ConfigError when PyJWT is missing or the address
        cannot be one of keys."""
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
        self._now = now
        self._keys: list[IssuerKey] = []
        self._fetches = _Fetches()
        self._is_loading = False
        self._waiting: list[Callable[[], None]] = []
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
        deadline = monotonic() + FETCH_SECONDS
        data = b""
        try:
            with urllib.request.urlopen(self._rules.url, timeout=FETCH_SECONDS) as response:
                while len(data) <= MAX_BYTES and (piece := response.read1(_READ_BYTES)):
                    data += piece
                    if monotonic() > deadline:
                        raise ValueError(f"the response takes longer than {FETCH_SECONDS:g} s")
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
        """Raises InvalidToken, and AuthenticationWaits while the issuer's keys are fetched."""
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header)
            payload = jwt.api_jws.decode(token, key.public_key, algorithms=list(key.algorithms))
            claims = json.loads(payload)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidToken(f"its token is not valid: {error}") from None
        if not isinstance(claims, dict):
            raise InvalidToken("the claims of its token are no JSON object")
        return check_claims(claims, self._rules.claims, int(self._now()))

    def _key(self, header: dict[str, Any]) -> IssuerKey:
        if "crit" in header:
            raise InvalidToken("the header of its token has extensions (crit)")
        if header.get("alg") not in ALGORITHMS:
            raise InvalidToken(f"its token has the algorithm {header.get('alg')!r:.20}")
        key = select_key(self._keys, header)
        if key is not None:
            return key
        key_id = header.get("kid")
        if self._may_wait(key_id):
            raise AuthenticationWaits(self._waiting.append)
        raise InvalidToken(f"the issuer has no key {key_id!r:.100} ({URL})")

    def _may_wait(self, key_id: object) -> bool:
        """Whether keys are fetched now that may be those of a token."""
        if len(self._waiting) >= _MAX_WAITING:
            return False
        if self._is_loading:
            return True
        if self._fetches.may_fetch(key_id):
            self._load_soon()
            return True
        return False

    def _schedule(self) -> None:
        self.stop()
        self._refresh = self._timer.schedule(self._rules.refresh_ms, self._refresh_now)

    def _refresh_now(self) -> None:
        self._schedule()
        self._load_soon()

    def _load_soon(self) -> None:
        if not self._is_loading:
            self._is_loading = True
            spawn(self._reload(), name="oauth-keys")

    async def _reload(self) -> None:
        try:
            await self._run_in_thread(self.load)
        except (OSError, ValueError) as error:
            logger.warning("keeping the previous keys: cannot read %s: %s", URL, error)
        finally:
            self._is_loading = False
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                asyncio.get_running_loop().call_soon(each)
