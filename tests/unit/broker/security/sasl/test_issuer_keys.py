"""Keys of a set that must not verify tokens, as an attacker would use them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from ottla.broker.security.sasl.exchanges import AuthenticationWaits
from ottla.broker.security.sasl.issuer_keys import usable_keys
from ottla.broker.security.sasl.oauthbearer import InvalidToken
from tests.unit.broker.security.sasl.test_oauth_keys import CLAIMS, opened

RSA = rsa.generate_private_key(65537, 2048)
SHORT = rsa.generate_private_key(65537, 1024)
SECRET = b"sharedsharedsharedsharedsharedsh"


def public(key: rsa.RSAPrivateKey, **more: object) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), **more}


def secret(**more: object) -> dict[str, Any]:
    encoded = base64.urlsafe_b64encode(SECRET).decode().rstrip("=")
    return {"kty": "oct", "k": encoded, **more}


def curve(key: ec.EllipticCurve) -> dict[str, Any]:
    made = ec.generate_private_key(key).public_key()
    return dict(ECAlgorithm.to_jwk(made, as_dict=True))


def maced(header: dict[str, Any]) -> str:
    """A token whose "signature" is a MAC with the shared secret."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in (header, CLAIMS)]
    content = b".".join(part.rstrip(b"=") for part in parts)
    mac = hmac.digest(SECRET, content, hashlib.sha256)
    return f"{content.decode()}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (public(RSA, alg="RS256", use="sig"), ["RS256"]),
        (public(RSA), ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (public(RSA, key_ops=["verify"]), ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (curve(ec.SECP256R1()), ["ES256"]),
        (curve(ec.SECP384R1()) | {"alg": "ES384"}, ["ES384"]),
        (
            OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate().public_key(), as_dict=True),
            ["EdDSA"],
        ),
        (public(RSA, use="enc"), None),
        (public(RSA, alg="RSA-OAEP"), None),
        (public(RSA, alg="HS256"), None),
        (public(RSA, alg="ES256"), None),
        (public(RSA, key_ops=["encrypt"]), None),
        (public(RSA, n=7), None),
        (public(RSA, e="x"), None),
        (public(SHORT), None),
        (secret(), None),
        (secret(alg="HS256"), None),
        (secret(alg="RS256", use="sig"), None),
        ({"kty": "RSA"}, None),
        ({}, None),
    ],
)
def test_what_verifies_signatures(key: dict[str, Any], algorithms: list[str] | None) -> None:
    found = usable_keys(jwt, [{**key, "kid": "a"}])
    assert [list(each.algorithms) for each in found] == ([] if algorithms is None else [algorithms])


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")
async def test_no_token_is_accepted_but_with_the_right_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = [
        public(RSA, kid="rsa", alg="RS256", use="sig"),
        public(RSA, kid="enc", use="enc"),
        public(SHORT, kid="short"),
        secret(kid="oct"),
        secret(kid="oct-rs", alg="RS256"),
    ]
    path.write_text(json.dumps({"keys": keys}))
    tokens = await opened(path)
    assert tokens.validate(jwt.encode(CLAIMS, RSA, "RS256", headers={"kid": "rsa"})).name == "anna"
    refused = [
        *(
            maced({"alg": alg, "kid": kid})
            for alg in ("RS256", "HS256")
            for kid in ("oct", "oct-rs")
        ),
        maced({"alg": "RS256", "kid": "rsa"}),
        jwt.encode(CLAIMS, RSA, "RS512", headers={"kid": "rsa"}),
        jwt.encode(CLAIMS, RSA, "PS256", headers={"kid": "rsa"}),
        jwt.encode(CLAIMS, RSA, "RS256", headers={"kid": "enc"}),
        jwt.encode(CLAIMS, SHORT, "RS256", headers={"kid": "short"}),
        jwt.encode(CLAIMS, None, "none", headers={"kid": "rsa"}),
    ]
    for token in refused:
        with pytest.raises((InvalidToken, AuthenticationWaits)):
            tokens.validate(token)
