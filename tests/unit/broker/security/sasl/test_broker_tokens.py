"""Bearer tokens between brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.sasl import broker_tokens as module
from ottla.broker.security.sasl.broker_login import build_broker_login
from ottla.broker.security.sasl.broker_tokens import IssuedBrokerTokens, UnsecuredBrokerTokens
from ottla.broker.security.sasl.oauthbearer import UnsecuredTokens
from ottla.protocol.client.errors import AuthenticationError
from tests.doubles.eventually import eventually_async
from tests.doubles.sasl_talk import BEARER_LOGIN
from tests.doubles.tokens import token_endpoint, unsecured_token

REFRESH = {
    "window.factor": 0.8,
    "window.jitter": 0.0,
    "buffer.seconds": 0.0,
    "min.period.seconds": 0.0,
}


async def in_place(function: Callable[[], None]) -> None:
    function()


def now_ms() -> int:
    return int(time.time() * 1000)


def config(**more: str) -> BrokerConfig:
    login = "listener.name.brokers.oauthbearer.sasl.jaas.config"
    return BrokerConfig(
        {
            "listeners": "BROKERS://127.0.0.1:0",
            "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            login: f'{BEARER_LOGIN} unsecuredLoginStringClaim_sub="broker";',
            **{name.replace("_", "."): text for name, text in more.items()},
        }
    )


def test_a_broker_accepts_its_own_token() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": "broker",
        "unsecuredLoginListClaim_scope": "|use|admin",
        "unsecuredLoginNumberClaim_level": "7",
        "unsecuredLoginExtension_zone": "a",
    }
    tokens = UnsecuredBrokerTokens(options, now_ms)
    assert tokens.extensions == (("zone", "a"),)
    validator = UnsecuredTokens({"unsecuredValidatorRequiredScope": "use admin"}, now_ms)
    assert validator.validate(tokens.token()).name == "broker"
    with pytest.raises(ValueError, match="unsecuredLoginStringClaim_sub is missing"):
        UnsecuredBrokerTokens({}, now_ms)


async def test_the_login_of_a_broker() -> None:
    login = build_broker_login(config(), Timer(), now_ms, in_place)
    assert login is not None
    await login.start()
    assert login.security.mechanism == "OAUTHBEARER"
    assert login.security.token is not None
    assert login.security.token().count(".") == 2
    login.stop()
    handler = {
        "listener.name.brokers.oauthbearer.sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        )
    }
    with pytest.raises(ConfigError, match=r"needs sasl\.oauthbearer\.token\.endpoint\.url"):
        build_broker_login(BrokerConfig(config().given | handler), Timer(), now_ms, in_place)


def test_names_that_are_missing() -> None:
    login = "listener.name.brokers.oauthbearer.sasl.jaas.config"
    with pytest.raises(ConfigError, match="the name of this broker"):
        build_broker_login(
            BrokerConfig(config().given | {login: f"{BEARER_LOGIN};"}), Timer(), now_ms, in_place
        )


async def test_tokens_of_an_issuer_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_MS", 10)
    with token_endpoint("broker", "secret") as endpoint:
        tokens = IssuedBrokerTokens(
            endpoint.url,
            {"clientId": "broker", "clientSecret": "secret", "scope": "kafka"},
            REFRESH | {"window.factor": 0.0},
            Timer(),
            now_ms,
            asyncio.to_thread,
        )
        await tokens.start()
        first = tokens.token()
        assert endpoint.forms[0] == {"grant_type": "client_credentials", "scope": "kafka"}
        endpoint.responses.append((500, {}, b""))
        # The next request fails, and the one after it succeeds.
        await eventually_async(lambda: len(endpoint.forms) >= 3)
        assert tokens.token()
        tokens.stop()
        assert first


async def test_a_token_that_has_expired_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(unsecured_token("broker", lives_seconds=1000) + "\n")
    now = [now_ms()]
    tokens = IssuedBrokerTokens(path.as_uri(), {}, REFRESH, Timer(), lambda: now[0], in_place)
    await tokens.start()
    tokens.stop()
    assert tokens.token() == path.read_text().strip()
    now[0] += 1_001_000
    with pytest.raises(AuthenticationError, match="has expired"):
        tokens.token()


@pytest.mark.parametrize("url", ["ftp://x", "file:///nowhere/at/all"])
async def test_an_issuer_that_gives_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.token\.endpoint\.url"):
        await IssuedBrokerTokens(url, {}, REFRESH, Timer(), now_ms, in_place).start()
