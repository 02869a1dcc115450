"""The private keys of a PKCS12 store with their aliases: `cryptography` reads one key of a store.

RFC 7292. Stores of keytool and OpenSSL have their keys, each encrypted by itself, in parts that are
not encrypted. Others (keys in an encrypted part, BER with indefinite lengths) give no keys here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.broker.config.der import children, value_of

_DATA = bytes.fromhex("06092a864886f70d010701")  # 1.2.840.113549.1.7.1 in DER
_PLAIN_KEY = bytes.fromhex("060b2a864886f70d010c0a0101")  # 1.2.840.113549.1.12.10.1.1
_ENCRYPTED_KEY = bytes.fromhex("060b2a864886f70d010c0a0102")  # 1.2.840.113549.1.12.10.1.2
_FRIENDLY_NAME = bytes.fromhex("06092a864886f70d010914")  # 1.2.840.113549.1.9.20


class StoredKey(NamedTuple):
    """`pkcs8` is the key in DER, encrypted with the password of the store if it `is_encrypted`."""

    alias: str
    pkcs8: bytes
    is_encrypted: bool


def stored_keys(store: bytes) -> list[StoredKey]:
    """The keys in the order of the store; their aliases are those of Java. ValueError for a store
    in another encoding."""
    found: dict[str, StoredKey] = {}
    without_name = 0
    for kind, value, attributes in _bags(store):
        if kind not in (_PLAIN_KEY, _ENCRYPTED_KEY):
            continue
        alias = _friendly_name(attributes)
        if alias is None:
            without_name += 1
            alias = str(without_name)
        alias = alias.lower()
        found[alias] = StoredKey(alias, value, kind == _ENCRYPTED_KEY)
    return list(found.values())


def _bags(store: bytes) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
    """The kind, value and attributes of each bag that is not in an encrypted part."""
    content = _data_of(children(value_of(store))[1])
    for part in children(value_of(content)) if content else []:
        bags = _data_of(part)
        for bag in children(value_of(bags)) if bags else []:
            kind, value, *attributes = children(value_of(bag))
            yield kind, value_of(value), children(value_of(attributes[0])) if attributes else []


def _data_of(content_info: bytes) -> bytes:
    """The octets of a ContentInfo; nothing if they are encrypted."""
    kind, content = children(value_of(content_info))
    return value_of(value_of(content)) if kind == _DATA else b""


def _friendly_name(attributes: list[bytes]) -> str | None:
    for attribute in attributes:
        kind, values = children(value_of(attribute))
        if kind == _FRIENDLY_NAME:
            return value_of(value_of(values)).decode("utf-16-be", "surrogatepass")
    return None
