"""Bearer tokens beside Kafka's validator: whose they are, until when, and which are rejected.

The tokens are of the time of the test, so the vectors hold only what became of them.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ottla.broker.security.sasl.exchanges import AuthenticationWaits
from ottla.broker.security.sasl.oauthbearer import InvalidToken
from tests.doubles.apache_kafka import kafka_library
from tests.golden.identity.regenerate import ask
from tests.unit.broker.security.sasl.test_oauth_keys import opened

VECTORS = Path(__file__).with_name("tokens.json")
ISSUER = "https://issuer"
# Longer than it takes a JVM on a busy machine to come to the last token.
SKEW_SECONDS = 600


class Case(NamedTuple):
    """Times in `claims` are seconds from now, in `fixed` as they are; `key` signs, `kid` is
    named."""

    times: dict[str, int]
    claims: dict[str, Any]
    fixed: dict[str, Any]
    key: str = "rsa"
    kid: str | None = "rsa"
    audience: tuple[str, ...] = ("kafka",)
    issuer: str | None = ISSUER
    subject: str = "sub"
    header: dict[str, Any] = {}  # noqa: RUF012  never changed


_TIMES: list[dict[str, int]] = [
    {"exp": 60, "iat": 0},
    {"exp": 900, "iat": 300},
    {"exp": 300, "iat": 301},
    {"exp": 300, "iat": 300},
    {"exp": -10, "iat": -100},
    {"exp": -700, "iat": -800},
    {"exp": 60},
    {"iat": 0},
    {"exp": 60, "iat": 0, "nbf": 10},
    {"exp": 3000, "iat": 0, "nbf": 2500},
    {"exp": 600, "iat": 0, "nbf": 300},
    {"exp": 60, "iat": 0, "nbf": 61},
    {"exp": 60, "iat": 0, "nbf": -60},
]
_AUDIENCES: list[Any] = [
    *("kafka", ["kafka"], ["x", "kafka"], ["x"], "x", [], "", None, 7, ["kafka", 7], {"a": "b"}),
    *("Kafka", " kafka", ["kafka", None]),
]
_SCOPES: list[Any] = [
    *("a b", "a", "", " ", ["a", "b"], ["a", "a"], ["a", " a"], ["a", ""], [], None, 7, {"a": "b"}),
]
_SUBJECTS: list[Any] = ["svc", " svc ", "", " ", None, 7, ["svc"], "Ümit", "a,b=c", "\t", "x" * 300]
_ISSUERS: list[Any] = [ISSUER, ISSUER + "/", None, 7, "", ISSUER.upper()]
_GOOD = {"exp": 600, "iat": -5}
_NAMED = {"sub": "svc", "iss": ISSUER, "aud": "kafka"}


def cases() -> list[Case]:
    found = [Case(times, _NAMED, {}) for times in _TIMES]
    found += [Case(_GOOD, {**_NAMED, "aud": each}, {}) for each in _AUDIENCES]
    found += [Case(_GOOD, {**_NAMED, "aud": each}, {}, audience=()) for each in _AUDIENCES]
    found += [Case(_GOOD, {**_NAMED, "aud": each}, {}, audience=("x", "y")) for each in _AUDIENCES]
    found += [Case(_GOOD, {**_NAMED, "scope": each}, {}) for each in _SCOPES]
    found += [Case(_GOOD, {**_NAMED, "sub": each}, {}) for each in _SUBJECTS]
    found += [Case(_GOOD, {**_NAMED, "app": each}, {}, subject="app") for each in _SUBJECTS]
    found += [
        Case(_GOOD, {**_NAMED, "iss": each}, {}, issuer=issuer)
        for each, issuer in itertools.product(_ISSUERS, (ISSUER, None))
    ]
    odd: list[Any] = [2**33, 2**33 + 0.5, str(2**33), True, -5, None, [1], 10**12, 0]
    for name, value in itertools.product(("exp", "iat", "nbf"), odd):
        found.append(Case(_GOOD, _NAMED, {name: value}))
    found += [Case(_GOOD, {**_NAMED, "jti": each}, {}) for each in ("a", 7, None)]
    for key, kid in itertools.product(("rsa", "other", "ec", "lost"), ("rsa", "ec", "lost", None)):
        found.append(Case(_GOOD, _NAMED, {}, key=key, kid=kid))
    found += [Case(_GOOD, _NAMED, {}, header={"crit": ["x"], "x": 1}), Case(_GOOD, {}, {})]
    found.append(Case(_GOOD, _NAMED, {}, header={"typ": "at+jwt"}))
    source = random.Random(3)
    while len(found) < 240:
        claims = {"sub": source.choice(_SUBJECTS), "iss": source.choice([ISSUER, *_ISSUERS])}
        claims["aud"] = source.choice(_AUDIENCES[:3] + _AUDIENCES)
        claims["scope"] = source.choice(_SCOPES[:2] + _SCOPES)
        found.append(Case(source.choice(_TIMES[:2] + _TIMES), claims, {}))
    return found


class Issuer:
    """Keys, of which "lost" is not in the set."""

    def __init__(self, folder: Path) -> None:
        self.keys: dict[str, Any] = {
            name: rsa.generate_private_key(65537, 2048) for name in ("rsa", "other", "lost")
        }
        self.keys["ec"] = ec.generate_private_key(ec.SECP256R1())
        rows = []
        for name in ("rsa", "other", "ec"):
            kind = ECAlgorithm if name == "ec" else RSAAlgorithm
            rows.append({**kind.to_jwk(self.keys[name].public_key(), as_dict=True), "kid": name})
        self.path = folder / "keys.json"
        self.path.write_text(json.dumps({"keys": rows}))

    def token(self, case: Case, now: int) -> str:
        claims = {name: now + seconds for name, seconds in case.times.items()}
        content = json.dumps({**case.claims, **claims, **case.fixed}).encode()
        header = {} if case.kid is None else {"kid": case.kid}
        algorithm = "ES256" if case.key == "ec" else "RS256"
        return jwt.api_jws.encode(
            content, self.keys[case.key], algorithm, headers={**header, **case.header}
        )


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


async def owner_of(issuer: Issuer, case: Case, now: int) -> str | None:
    """The owner and the seconds that are left; None for a token that is rejected."""
    tokens = await opened(
        issuer.path,
        issuer=case.issuer,
        audience=list(case.audience),
        name_claim=case.subject,
        clock_skew_seconds=SKEW_SECONDS,
    )
    try:
        name, expires_at_ms = tokens.validate(issuer.token(case, now))
    except (InvalidToken, AuthenticationWaits):
        return None
    return f"{_relative(expires_at_ms, now)} {name}"


def _relative(expires_at_ms: int, now: int) -> int:
    seconds = expires_at_ms // 1000
    return seconds - now if abs(seconds - now) < 100_000 else seconds


def kafkas_answers(issuer: Issuer, now: int) -> list[str | None]:
    url = issuer.path.as_uri()
    asked = [
        {
            "token": issuer.token(case, now),
            "jwks": url,
            "skew": SKEW_SECONDS,
            "subject": case.subject,
            "issuer": case.issuer,
            "audience": list(case.audience),
        }
        for case in cases()
    ]
    option = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    _, answers = ask(kafka_library(), asked, [option])
    found: list[str | None] = []
    for answer in answers:
        expires_at_ms, _, name = answer.get("found", "").partition(" ")
        found.append(f"{_relative(int(expires_at_ms), now)} {name}" if expires_at_ms else None)
    return found


def write_vectors() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = kafkas_answers(Issuer(Path(folder)), int(time.time()))
    VECTORS.write_text(json.dumps(answers, indent=0) + "\n")


async def test_tokens_are_accepted_as_kafka_does(issuer: Issuer) -> None:
    now = int(time.time())
    stored = json.loads(VECTORS.read_text())
    assert len(stored) == len(cases()) >= 200
    for case, expected in zip(cases(), stored, strict=True):
        assert await owner_of(issuer, case, now) == expected, case


def test_kafka_still_answers_so(issuer: Issuer) -> None:
    if shutil.which("javac") is None:
        pytest.skip("a JDK runs Kafka's class: there is no `javac` on the PATH")
    found = kafkas_answers(issuer, int(time.time()))
    stored = json.loads(VECTORS.read_text())
    for case, answer, expected in zip(cases(), found, stored, strict=True):
        assert answer == expected, case
    assert sum(answer is not None for answer in found) > 40
