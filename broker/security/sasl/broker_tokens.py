"""Bearer tokens with which this broker authenticates to other brokers.

Without more they have no signature, for development, as Kafka's
`OAuthBearerUnsecuredLoginCallbackHandler` makes them. With
`sasl.login.callback.handler.class=...OAuthBearerLoginCallbackHandler` they come from
`sasl.oauthbearer.token.endpoint.url` by the grant of client credentials, or from a file (KIP-768),
and are renewed before they expire (`sasl.login.refresh.*`).
"""

from __future__ import annotations

import base64
import json
import logging
import random
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.sasl import PeerLogin, mechanism_setting, oauth_text
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.client.errors import AuthenticationError

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.runtime.wheel import TimerTask
    from ottla.broker.security.sasl.oauth_keys import RunInThread

logger = logging.getLogger("ottla.security")

URL = "sasl.oauthbearer.token.endpoint.url"

# A token is a few kilobytes; a server that sends more has no token.
MAX_BYTES = 1 << 20
FETCH_SECONDS = 10.0
# After a failure; the request is retried, and the last token is used meanwhile.
RETRY_MS = 1_000
# Where neither the token nor the response says when it expires.
_UNKNOWN_LIFETIME_MS = 300_000


class BrokerTokens:
    """The token of this broker. Loop only, but for `token` and `fetch`."""

    extensions: tuple[tuple[str, str], ...] = ()

    async def start(self) -> None:
        """Gets the first token. Raises ConfigError."""

    def stop(self) -> None:
        """No token is renewed any more."""

    def token(self) -> str:
        """The token for a new connection; does not block. Raises AuthenticationError."""
        raise NotImplementedError


class UnsecuredBrokerTokens(BrokerTokens):
    """Tokens that this broker makes itself."""

    def __init__(self, options: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        """`options` are those of the JAAS login. Raises ValueError."""
        prefix = "unsecuredLogin"
        self._now_ms = now_ms
        self._claims: dict[str, object] = {}
        for name, text in options.items():
            if name.startswith(f"{prefix}StringClaim_"):
                self._claims[name.partition("_")[2]] = text
            elif name.startswith(f"{prefix}NumberClaim_"):
                self._claims[name.partition("_")[2]] = float(text)
            elif name.startswith(f"{prefix}ListClaim_"):
                self._claims[name.partition("_")[2]] = text[1:].split(text[:1])
        self.extensions = tuple(
            (name.partition("_")[2], text)
            for name, text in options.items()
            if name.startswith(f"{prefix}Extension_")
        )
        self._lifetime_ms = int(options.get(f"{prefix}LifetimeSeconds") or 3600) * 1000
        claim = options.get(f"{prefix}PrincipalClaimName") or "sub"
        if not isinstance(self._claims.get(claim), str):
            raise ValueError(f"{prefix}StringClaim_{claim} is missing, the name of this broker")

    def token(self) -> str:
        now = self._now_ms() / 1000
        times = {"iat": now, "exp": now + self._lifetime_ms / 1000}
        parts = [{"alg": "none"}, {**times, **self._claims}]
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
        return "".join(part.decode().rstrip("=") + "." for part in encoded)


class IssuedBrokerTokens(BrokerTokens):
    """Tokens of an issuer."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str],
        refresh: Mapping[str, float],
        timer: DelayQueue,
        now_ms: Callable[[], int],
        run_in_thread: RunInThread,
    ) -> None:
        """`refresh` are the settings `sasl.login.refresh.*` by their last words. Raises
        ConfigError."""
        if not url.startswith(("https://", "http://", "file://")):
            raise ConfigError(f"{URL}: {url!r} is no address with https, http or file.")
        self._url = url
        self._options = options
        self._refresh_rules = refresh
        self._timer = timer
        self._now_ms = now_ms
        self._run_in_thread = run_in_thread
        self._token = ""
        self._expires_ms = 0
        self._task: TimerTask | None = None
        self._stopped = False
        self.extensions = tuple(
            (name.partition("_")[2], text)
            for name, text in options.items()
            if name.startswith("extension_")
        )

    async def start(self) -> None:
        try:
            await self._run_in_thread(self.fetch)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{URL}: no token can be read from {self._url}: {error}.") from None
        self._schedule(self._delay_ms())

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def token(self) -> str:
        if not self._token or self._now_ms() >= self._expires_ms:
            raise AuthenticationError(f"the bearer token of this broker has expired ({URL})")
        return self._token

    def fetch(self) -> None:
        """Gets a token; blocks. Raises OSError and ValueError."""
        request: Any = self._url
        if not self._url.startswith("file:"):
            request = self._request()
        try:
            with urllib.request.urlopen(request, timeout=FETCH_SECONDS) as response:
                data = response.read(MAX_BYTES + 1)
        except HTTPException as error:
            raise ValueError(f"the response is not HTTP: {error!r}") from None
        if len(data) > MAX_BYTES:
            raise ValueError(f"the response has more than {MAX_BYTES} bytes")
        if self._url.startswith("file:"):
            token, lifetime = data.decode().strip(), None
        else:
            found = json.loads(data)
            token = found.get("access_token") if isinstance(found, dict) else None
            lifetime = found.get("expires_in") if isinstance(found, dict) else None
        if not isinstance(token, str) or not token:
            raise ValueError("the response has no access_token")
        self._expires_ms = _expiry_ms(token, lifetime, self._now_ms())
        self._token = token

    def _request(self) -> urllib.request.Request:
        options = self._options
        form = {"grant_type": "client_credentials"}
        if options.get("scope"):
            form["scope"] = options["scope"]
        secret = f"{options.get('clientId', '')}:{options.get('clientSecret', '')}"
        return urllib.request.Request(
            self._url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )

    def _delay_ms(self) -> int:
        """Until the token is renewed: a part of its lifetime, as in Kafka."""
        rules = self._refresh_rules
        left_ms = max(self._expires_ms - self._now_ms(), 0)
        window = rules["window.factor"] + rules["window.jitter"] * random.random()
        delay_ms = min(left_ms * window, left_ms - rules["buffer.seconds"] * 1000)
        return int(max(delay_ms, rules["min.period.seconds"] * 1000, RETRY_MS))

    def _schedule(self, delay_ms: int) -> None:
        if not self._stopped:
            self._task = self._timer.schedule(delay_ms, self._renew)

    def _renew(self) -> None:
        self._task = None
        spawn(self._reload(), name="broker-token")

    async def _reload(self) -> None:
        try:
            await self._run_in_thread(self.fetch)
        except (OSError, ValueError) as error:
            logger.warning("cannot renew the bearer token of this broker: %s (%s)", error, URL)
            self._schedule(RETRY_MS)
        else:
            self._schedule(self._delay_ms())


def broker_tokens(
    config: BrokerConfig,
    login: PeerLogin,
    timer: DelayQueue,
    now_ms: Callable[[], int],
    run_in_thread: RunInThread,
) -> BrokerTokens:
    """What the settings ask for. Raises ConfigError."""
    listener = login.listener_name
    url = oauth_text(config, listener, URL)
    handler_setting = mechanism_setting(
        listener, login.mechanism, "sasl.login.callback.handler.class"
    )
    if url:
        names = ("window.factor", "window.jitter", "buffer.seconds", "min.period.seconds")
        refresh = {
            name: float(config.listener_text(listener, f"sasl.login.refresh.{name}") or 0)
            for name in names
        }
        return IssuedBrokerTokens(url, login.options, refresh, timer, now_ms, run_in_thread)
    if config.effective_text(handler_setting):
        raise ConfigError(f"{handler_setting} needs {URL}.")
    try:
        return UnsecuredBrokerTokens(login.options, now_ms)
    except ValueError as error:
        raise ConfigError(
            f"Brokers authenticate to each other with OAUTHBEARER on listener {listener}: "
            f"{mechanism_setting(listener, login.mechanism, 'sasl.jaas.config')}: {error}."
        ) from None


def _expiry_ms(token: str, lifetime: object, now_ms: int) -> int:
    """When a token expires: what it says itself, else the response."""
    parts = token.split(".")
    if len(parts) == 3:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            expires = claims.get("exp") if isinstance(claims, dict) else None
            if isinstance(expires, int | float) and not isinstance(expires, bool):
                return int(expires * 1000)
        except (ValueError, OverflowError):
            pass  # a token that is opaque to this broker
    if isinstance(lifetime, int | float) and not isinstance(lifetime, bool):
        return now_ms + int(lifetime * 1000)
    return now_ms + _UNKNOWN_LIFETIME_MS
