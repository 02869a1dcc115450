"""Signed bearer tokens and the keys of their issuer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.sasl import oauth_keys
from ottla.broker.security.sasl.exchanges import AuthenticationWaits
from ottla.broker.security.sasl.listeners import SaslListeners
from ottla.broker.security.sasl.oauth_keys import SignedTokens, TokenRules
from ottla.broker.security.sasl.oauthbearer import InvalidToken, OauthExchange, ValidToken
from ottla.broker.security.sasl.token_claims import ClaimRules
from tests.doubles.controller_cluster import settle
from tests.doubles.eventually import eventually_async
from tests.doubles.manual_timer import ManualClock, ManualTimer

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
FUTURE, PAST = 4_000_000_000, 1_600_000_000
CLAIMS = {"sub": "anna", "exp": FUTURE, "iat": PAST}


def write_keys(path: Path, *names: str) -> None:
    keys = []
    for name in names:
        found = (
            ECAlgorithm.to_jwk(EC.public_key(), as_dict=True)
            if name == "ec"
            else RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True)
        )
        keys.append(found | {"kid": name, "alg": "ES256" if name == "ec" else "RS256"})
    path.write_text(json.dumps({"keys": keys}))


def signed(claims: dict[str, Any], kid: str = "rsa", **more: Any) -> str:
    key, algorithm = (EC, "ES256") if kid == "ec" else (RSA, "RS256")
    return jwt.encode(claims, key, algorithm, headers={"kid": kid} | more)


async def in_place(function: Callable[[], None]) -> None:
    function()


async def opened(path: Path, **rules: Any) -> SignedTokens:
    url = rules.pop("url", path.as_uri())
    claims = ClaimRules([], None, 30, "sub", "scope")._replace(**rules)
    tokens = SignedTokens(TokenRules(url, claims, 3_600_000), Timer(), in_place)
    await tokens.start()
    tokens.stop()
    return tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "keys.json"
    write_keys(found, "rsa", "ec")
    return found


async def test_tokens_of_the_issuer(path: Path) -> None:
    tokens = await opened(path, issuer="https://issuer", audience=["kafka", "other"])
    claims = CLAIMS | {"iss": "https://issuer", "aud": "kafka"}
    for kid in ("rsa", "ec"):
        assert tokens.validate(signed(claims, kid)) == ("anna", FUTURE * 1000)
    named = await opened(path, name_claim="client_id")
    assert named.validate(signed(CLAIMS | {"client_id": " app "})).name == "app"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.y.z",
        signed(CLAIMS | {"exp": PAST}),
        signed(CLAIMS | {"iat": FUTURE + 1}),
        signed(CLAIMS | {"nbf": FUTURE - 1}),
        signed({"sub": "anna", "exp": FUTURE}),
        signed({"sub": "anna", "iat": PAST}),
        signed({"exp": FUTURE, "iat": PAST}),
        signed(CLAIMS | {"aud": "others"}),
        signed(CLAIMS)[:-8] + "AAAAAAAA",
        jwt.encode(CLAIMS, None, "none", headers={"kid": "rsa"}),
        jwt.encode(CLAIMS, "x" * 32, "HS256", headers={"kid": "rsa"}),
    ],
)
async def test_tokens_that_are_not_valid(path: Path, text: str) -> None:
    tokens = await opened(path)
    with pytest.raises(InvalidToken):
        tokens.validate(text)


@pytest.mark.parametrize("expiry", [str(FUTURE), 1e308, 10**30, True])
async def test_an_expiry_that_is_no_time(path: Path, expiry: object) -> None:
    tokens = await opened(path)
    with pytest.raises(InvalidToken, match="the claim exp of its token is no time"):
        tokens.validate(signed(CLAIMS | {"exp": expiry}))


async def test_the_issuer_and_the_audience_count(path: Path) -> None:
    tokens = await opened(path, issuer="https://issuer", audience=["kafka"])
    for claims in (CLAIMS, CLAIMS | {"iss": "other", "aud": "kafka"}, CLAIMS | {"aud": "kafka"}):
        with pytest.raises(InvalidToken):
            tokens.validate(signed(claims))


async def test_a_new_key_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(path, "rsa")
    tokens = await opened(path)
    write_keys(path, "rsa", "ec")
    text = signed(CLAIMS, "ec")
    called: list[ValidToken] = []
    with pytest.raises(AuthenticationWaits) as waits:
        tokens.validate(text)
    waits.value.call_back(lambda: called.append(tokens.validate(text)))
    await eventually_async(lambda: bool(called))
    assert called[0].name == "anna"


async def test_unknown_keys_fetch_little(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(path, "rsa")
    tokens = await opened(path)
    loads: list[float] = []
    monkeypatch.setattr(tokens, "load", lambda: loads.append(0))
    for number in range(50):
        for _ in range(3):
            with pytest.raises((InvalidToken, AuthenticationWaits)):
                tokens.validate(signed(CLAIMS, f"key {number}"))
            await settle()
    assert len(loads) == 5


async def test_a_client_waits_for_the_keys_and_is_answered_once(path: Path) -> None:
    write_keys(path, "rsa")
    tokens = await opened(path)
    exchange = OauthExchange(tokens.validate)
    write_keys(path, "rsa", "ec")
    first = b"n,,\x01auth=Bearer " + signed(CLAIMS, "ec").encode() + b"\x01\x01"
    with pytest.raises(AuthenticationWaits) as waits:
        exchange.step(first)
    done: list[bytes] = []
    waits.value.call_back(lambda: done.append(exchange.step(first)))
    await eventually_async(lambda: bool(done))
    assert (done, exchange.is_complete, exchange.name) == ([b""], True, "anna")


async def test_keys_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.json"
    for text in ("", "{}", "[]", '{"keys": []}', '{"keys": [{"kty": "what"}]}'):
        broken.write_text(text)
        with pytest.raises(ConfigError, match="no keys can be read"):
            await opened(broken)
    with pytest.raises(ConfigError, match="no keys can be read"):
        await opened(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="no address"):
        await opened(tmp_path, url="ftp://x")
    write_keys(broken, "rsa")
    tokens = await opened(broken)
    broken.write_text("{}")
    with pytest.raises(AuthenticationWaits):
        tokens.validate(signed(CLAIMS, "ec"))
    await eventually_async(lambda: "keeping the previous keys" in caplog.text)
    await asyncio.sleep(0)
    assert tokens.validate(signed(CLAIMS)).name == "anna"


async def test_the_keys_of_each_listener_are_read_once_and_as_long_as_it_is_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listeners are added and removed at run time, and each addition starts what is new."""
    monkeypatch.setattr(oauth_keys, "LEAST_INTERVAL_SECONDS", 0.0)
    loads: list[str] = []
    load = SignedTokens.load

    def counted(tokens: SignedTokens) -> None:
        loads.append(tokens._rules.url)
        load(tokens)

    monkeypatch.setattr(SignedTokens, "load", counted)
    config = BrokerConfig(
        {
            "listeners": "INNER://:0,ONE://127.0.0.1:0,TWO://127.0.0.1:0",
            "listener.security.protocol.map": (
                "INNER:PLAINTEXT,ONE:SASL_PLAINTEXT,TWO:SASL_PLAINTEXT"
            ),
            "inter.broker.listener.name": "INNER",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000",
        }
    )
    timer = ManualTimer(ManualClock())
    unused: Any = None

    async def later(job: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        job()

    listeners = SaslListeners(
        config, unused, unused, timer, lambda: 0, NetworkStatistics(), later, unused
    )
    for expected in (1, 2):
        listeners.new_session(("ONE", "TWO")[expected - 1])
        await asyncio.gather(listeners.start(), listeners.start())  # a setting changes at the start
        await listeners.start()
        assert len(loads) == expected

    async def refreshed() -> int:
        before = len(loads)
        timer.advance(1000)
        await settle()
        return len(loads) - before

    assert await refreshed() == 2
    listeners.forget("ONE")
    assert await refreshed() == 1
    listeners.stop()
    assert await refreshed() == 0


async def test_the_claim_of_the_scopes_is_the_one_that_is_set(path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.scope.claim.name": "scp",
    }
    rules = TokenRules.of(BrokerConfig(settings), "SASL_PLAINTEXT", path.as_uri())
    tokens = SignedTokens(rules, Timer(), in_place)
    await tokens.start()
    tokens.stop()
    assert tokens.validate(signed(CLAIMS | {"scope": ["a", "a"]})).name == "anna"
    with pytest.raises(InvalidToken, match=r"a scope twice \(scp\)"):
        tokens.validate(signed(CLAIMS | {"scp": ["a", "a"]}))
