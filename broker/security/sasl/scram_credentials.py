"""SCRAM credentials of users: what is stored instead of passwords (RFC 5802, KIP-84).

Kept as settings of the user under `/config/users`, as text in Kafka's form. What stands there is
enough to check a password and to prove that the broker knows it, and not enough to log in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from ottla.controller.tree import znodes

logger = logging.getLogger("ottla.security")

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Name of the hash function by mechanism."""

TYPES = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Mechanisms by their number on the wire (KIP-554)."""

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384


class ScramCredential(NamedTuple):
    """What the broker knows of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class TokenLogin(NamedTuple):
    """What a delegation token is checked against, when it serves as a login."""

    credential: ScramCredential
    owner: str
    expires_at_ms: int


def from_salted_password(
    mechanism: str, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a password that its owner has salted (an administrator's client does)."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramCredential(salt, hashlib.new(name, client_key).digest(), server_key, iterations)


def from_password(
    mechanism: str, password: str, *, salt: bytes | None = None, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """The credential of a password; takes milliseconds, on purpose."""
    chosen = os.urandom(16) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), chosen, iterations)
    return from_salted_password(mechanism, salted, chosen, iterations)


def encode_credential(credential: ScramCredential) -> str:
    """As Kafka stores it."""
    salt, stored_key, server_key = (base64.b64encode(part).decode() for part in credential[:3])
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key},"
        f"iterations={credential.iterations}"
    )


def decode_credential(text: str) -> ScramCredential:
    """Raises ValueError, with words that hold nothing of the credential."""
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    if pairs.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("a SCRAM credential has salt, stored_key, server_key and iterations")
    try:
        salt, stored_key, server_key = (
            base64.b64decode(pairs[key], validate=True)
            for key in ("salt", "stored_key", "server_key")
        )
        return ScramCredential(salt, stored_key, server_key, int(pairs["iterations"]))
    except (binascii.Error, ValueError):
        raise ValueError("a part of a SCRAM credential is not in base64 or no number") from None


class ScramCredentials:
    """The credentials of all users, in step with the znode tree. Loop only."""

    def __init__(self) -> None:
        self._users: dict[str, dict[str, ScramCredential]] = {}

    def get(self, mechanism: str, user: str) -> ScramCredential | None:
        return self._users.get(user, {}).get(mechanism)

    def apply(self, kind: str, name: str, properties: Mapping[str, str]) -> list[str]:
        """Takes the settings of an entity; those that are no user are skipped.

        Returns the problems of credentials that cannot be read, with which nobody logs in.
        """
        problems: list[str] = []
        if kind != znodes.ENTITY_USERS or "/" in name or name == znodes.DEFAULT_ENTITY:
            return problems
        user = znodes.desanitize(name)
        found: dict[str, ScramCredential] = {}
        for mechanism in HASHES:
            text = properties.get(mechanism)
            if text is None:
                continue
            try:
                found[mechanism] = decode_credential(text)
            except ValueError as error:
                problems.append(
                    f"the {mechanism} credential of user {user} cannot be used: {error}"
                )
        if found:
            self._users[user] = found
        else:
            self._users.pop(user, None)
        return problems
