"""Which keys of a JSON Web Key Set verify signatures, and with which algorithms.

A set may hold keys for encryption, shared secrets and keys that are too short. A secret (`oct`)
must not verify a token whose header names RSA: everyone who knows the secret could sign it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

logger = logging.getLogger("ottla.security")

#: NIST SP 800-131A; what Java's jose4j, which Kafka uses, requires of RSA too.
LEAST_RSA_BITS = 2048

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
    "Ed448": ("EdDSA",),
}


#: What a token may be signed with.
ALGORITHMS = frozenset((*_RSA, *(name for names in _BY_CURVE.values() for name in names)))


class IssuerKey(NamedTuple):
    """A public key and the algorithms that a token may name with it. `row` is the key in the
    set."""

    public_key: Any
    algorithms: tuple[str, ...]
    row: Mapping[str, Any]


def select_key(keys: Sequence[IssuerKey], header: Mapping[str, Any]) -> IssuerKey | None:
    """The key that verifies a token with this header.

    As jose4j's `VerificationJwkSelector`: a token without a key id takes the first key of its
    kind. A key that names an algorithm verifies no other, where jose4j minds only if several keys
    are left.
    """
    found = [key for key in keys if header.get("alg") in key.algorithms]
    if header.get("kid") is not None:
        found = [key for key in found if key.row.get("kid") == header["kid"]]
    for name in ("x5t", "x5t#S256"):
        if header.get(name) is not None:
            found = [key for key in found if key.row.get(name) in (None, header[name])]
    return found[0] if found else None


def usable_keys(jwt: Any, keys: Sequence[Mapping[str, Any]]) -> list[IssuerKey]:
    """The keys that verify signatures, with PyJWT as `jwt`; others are left out with a line in the
    log."""
    found: list[IssuerKey] = []
    for key in keys:
        key_id = key.get("kid")
        try:
            algorithms = _algorithms(key)
            if key_id is not None and not isinstance(key_id, str):
                raise ValueError("its kid is no text")
            made = jwt.PyJWK({**key, "alg": algorithms[0]}).key
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            logger.info("not using the issuer's key %.100r: %s", key_id, error)
            continue
        found.append(IssuerKey(made, algorithms, key))
    return found


def _algorithms(key: Mapping[str, Any]) -> tuple[str, ...]:
    """Raises ValueError for a key that verifies no signatures."""
    use, operations, kind = key.get("use", "sig"), key.get("key_ops", ["verify"]), key.get("kty")
    if use != "sig":
        raise ValueError(f"its use is {use!r:.20}, not sig")
    if not isinstance(operations, list) or "verify" not in operations:
        raise ValueError("its key_ops do not include verify")
    possible: tuple[str, ...]
    if kind == "RSA":
        _check_size(key)
        possible = _RSA
    elif kind in ("EC", "OKP"):
        possible = _BY_CURVE.get(str(key.get("crv")), ())
    else:
        raise ValueError(f"its kty is {kind!r:.20}, which is no public key")
    if not possible:
        raise ValueError(f"its crv is {key.get('crv')!r:.20}, which signs no token")
    named = key.get("alg")
    algorithms = tuple(each for each in possible if named in (None, each))
    if not algorithms:
        raise ValueError(f"its alg {named!r:.20} does not sign with a key of its kind")
    return algorithms


def _check_size(key: Mapping[str, Any]) -> None:
    modulus = key.get("n")
    if not isinstance(modulus, str):
        raise ValueError("it has no modulus")
    try:
        number = base64.urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4))
    except binascii.Error:
        raise ValueError("its modulus is not base64") from None
    bits = int.from_bytes(number, "big").bit_length()
    if bits < LEAST_RSA_BITS:
        raise ValueError(f"it has {bits} bits, fewer than {LEAST_RSA_BITS}")
