"""Keys and trusted certificates as PEM, from files in PEM, JKS or PKCS12.

What a file is shows in its first bytes, so that `ssl.keystore.type=JKS`, Kafka's default, reads PEM
and PKCS12 too (Java reads both of its formats under either name). PKCS12 needs `cryptography`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ottla.broker.config import pem
from ottla.broker.config.errors import ConfigError
from ottla.protocol.java_order import hash_map_order
from ottla.protocol.steps import run_at_once

TYPES = ("JKS", "PKCS12", "PEM")

# Certificates of all authorities of the web are a third of that.
_MAX_BYTES = 4 << 20
_JCEKS = b"\xce\xce\xce\xce"
_CERTIFICATE = re.compile(
    rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.*?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)


class Keys(NamedTuple):
    """`pem` is a private key and its certificate chain. `password` is that of the key in `pem`."""

    pem: bytes
    password: str | None


def read_keys(
    setting: str, path: str, kind: str | None, store_password: str | None, key_password: str | None
) -> list[Keys]:
    """The keys in the file that `setting`.location names, in the order in which Java prefers one
    of several of the same kind. Raises ConfigError."""
    data = _read(setting, path, kind)
    where = f"{setting}.location: {path}"
    try:
        if _is_jks(data):
            return _keys_of_jks(data, setting, store_password, key_password)
        if data.startswith(b"\x30"):
            return _keys_of_pkcs12(data, store_password)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.") from None
    try:
        return [Keys(pem.keys_and_certificates(data), key_password)]
    except pem.PemError as error:
        raise ConfigError(
            f"No private key with its certificate can be read from {path}: {error}."
        ) from None


def _keys_of_jks(
    data: bytes, setting: str, store_password: str | None, key_password: str | None
) -> list[Keys]:
    from ottla.broker.config.java_key_store import read_java_key_store

    if store_password is None:
        raise ValueError(f"it needs {setting}.password")
    keys = read_java_key_store(data, store_password, key_password).keys
    if not keys:
        raise ValueError("it has no private key")
    found = {
        alias: Keys(b"".join([_pem("PRIVATE KEY", key), *_certificates(chain)]), None)
        for alias, key, chain in keys
    }
    return [found[alias] for alias in run_at_once(hash_map_order(found))]


def read_trust(setting: str, path: str, kind: str | None, password: str | None) -> bytes:
    """The certificates in the file that `setting`.location names, as PEM. Raises ConfigError."""
    data = _read(setting, path, kind)
    try:
        if _is_jks(data):
            from ottla.broker.config.java_key_store import read_java_key_store

            found = _certificates(read_java_key_store(data, password).certificates)
        elif data.startswith(b"\x30"):
            found = _trust_of_pkcs12(data, password)
        else:
            return pem.trusted(data)
    except ValueError as error:
        raise ConfigError(f"{setting}.location: {path}: {error}.") from None
    if not found:
        raise ConfigError(f"{setting}.location: {path} has no trusted certificate.")
    return b"".join(found)


def inline_keys(key: str, chain: str, password: str | None) -> Keys:
    """The keys of the texts `ssl.keystore.key` and its chain. Raises ConfigError."""
    try:
        private = pem.private_key(key)
    except pem.PemError as error:
        raise ConfigError(f"ssl.keystore.key: {error}.") from None
    try:
        return Keys(private + pem.certificates(chain), password)
    except pem.PemError as error:
        raise ConfigError(f"ssl.keystore.certificate.chain: {error}.") from None


def inline_trust(text: str) -> bytes:
    """The certificates of the text `ssl.truststore.certificates`, as PEM. Raises ConfigError."""
    try:
        return pem.certificates(text)
    except pem.PemError as error:
        raise ConfigError(f"ssl.truststore.certificates: {error}.") from None


def check_sources(settings: Callable[[str], str | None]) -> None:
    """ConfigError, in Kafka's words, for keys or trust that settings name twice or in part.

    As `DefaultSslEngineFactory`, except that a file of another type than `ssl.keystore.type` needs
    no password if it is in PEM.
    """
    _check_key_source(settings)
    _check_trust_source(settings)


def _is_pem(kind: str | None) -> bool:
    return (kind or "").upper() == "PEM"


def _check_key_source(settings: Callable[[str], str | None]) -> None:
    path, kind = settings("ssl.keystore.location"), settings("ssl.keystore.type")
    key, chain = settings("ssl.keystore.key"), settings("ssl.keystore.certificate.chain")
    has_password = bool(settings("ssl.keystore.password"))
    if key and not _is_pem(kind):
        raise ConfigError(
            "SSL private key can be specified only for PEM, but key store type is "
            f"{kind or 'JKS'}: set ssl.keystore.type=PEM."
        )
    if key and not chain:
        raise ConfigError(
            "SSL private key is specified, but certificate chain is not specified: set "
            "ssl.keystore.certificate.chain."
        )
    if key and path:
        raise ConfigError(
            "Both SSL key store location and separate private key are specified: remove "
            "ssl.keystore.location or ssl.keystore.key."
        )
    if chain and not key:
        raise ConfigError(
            "SSL certificate chain is specified, but private key is not specified: set "
            "ssl.keystore.key."
        )
    if has_password and (key or (path and _is_pem(kind))):
        raise ConfigError(
            "SSL key store password cannot be specified with PEM format, only key password may be "
            "specified: set ssl.key.password instead of ssl.keystore.password."
        )
    if has_password and not path:
        raise ConfigError(
            "SSL key store is not specified, but key store password is specified: set "
            "ssl.keystore.location."
        )


def _check_trust_source(settings: Callable[[str], str | None]) -> None:
    path, kind = settings("ssl.truststore.location"), settings("ssl.truststore.type")
    inline = settings("ssl.truststore.certificates")
    has_password = bool(settings("ssl.truststore.password"))
    if inline and not _is_pem(kind):
        raise ConfigError(
            "SSL trust store certs can be specified only for PEM, but trust store type is "
            f"{kind or 'JKS'}: set ssl.truststore.type=PEM."
        )
    if inline and path:
        raise ConfigError(
            "Both SSL trust store location and separate trust certificates are specified: remove "
            "ssl.truststore.location or ssl.truststore.certificates."
        )
    if has_password and (inline or (path and _is_pem(kind))):
        raise ConfigError(
            "SSL trust store password cannot be specified for PEM format: remove "
            "ssl.truststore.password."
        )
    if has_password and not path:
        raise ConfigError(
            "SSL trust store is not specified, but trust store password is specified: set "
            "ssl.truststore.location."
        )


def certificates_of(pem: bytes) -> list[bytes]:
    """The certificates in DER, in their order."""
    return [
        base64.b64decode(b"".join(found.group().splitlines()[1:-1]))
        for found in _CERTIFICATE.finditer(pem)
    ]


def _read(setting: str, path: str, kind: str | None) -> bytes:
    if kind and kind.upper() not in TYPES:
        raise ConfigError(
            f"{setting}.type: stores of the type {kind} are not read here, but "
            f"{', '.join(TYPES)}. Convert it: keytool -importkeystore -srckeystore {path} "
            f"-srcstoretype {kind} -destkeystore store.p12 -deststoretype PKCS12."
        )
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{setting}.location: {path} cannot be read: {error.strerror}.") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{setting}.location: {path} has more than {_MAX_BYTES} bytes.")
    if data.startswith(_JCEKS):
        raise ConfigError(
            f"{setting}.location: {path} is a JCEKS store, which only Java reads. Convert it: "
            f"keytool -importkeystore -srckeystore {path} -srcstoretype JCEKS -destkeystore "
            f"store.p12 -deststoretype PKCS12. Then set {setting}.location=store.p12."
        )
    return data


def _is_jks(data: bytes) -> bool:
    return data.startswith(b"\xfe\xed\xfe\xed")


def _keys_of_pkcs12(data: bytes, password: str | None) -> list[Keys]:
    store = _load_pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise ValueError("it has no private key with a certificate")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    from ottla.broker.config.pkcs12_keys import stored_keys

    try:
        stored = stored_keys(data)
    except (ValueError, IndexError):
        stored = []  # in another encoding: `cryptography` found its first key
    secret = (password or "").encode()
    try:
        keys = {
            each.alias: serialization.load_der_private_key(
                each.pkcs8, secret if each.is_encrypted else None
            )
            for each in stored
        } or {"": store.key}
    except UnsupportedAlgorithm as error:
        raise ValueError(f"a key in it cannot be read: {error}") from None
    stored_certificates = (store.cert, *store.additional_certs)
    # Certificates of other keys in the store are not of a chain.
    by_subject = {each.certificate.subject: each.certificate for each in stored_certificates[::-1]}
    found = []
    for alias in run_at_once(hash_map_order(keys)):
        private = keys[alias]
        leaf = _certificate_of(private, alias, stored_certificates)
        if leaf is None:
            continue
        key = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain, others = [leaf], dict(by_subject)
        others.pop(leaf.subject, None)
        while chain[-1].issuer in others and chain[-1].issuer != chain[-1].subject:
            chain.append(others.pop(chain[-1].issuer))
        text = (each.public_bytes(serialization.Encoding.PEM) for each in chain)
        found.append(Keys(b"".join([key, *text]), None))
    if not found:
        raise ValueError("it has no private key with a certificate")
    return found


def _certificate_of(key, alias: str, stored):  # type: ignore[no-untyped-def]
    """The one of the key's alias first: a key may have a second certificate."""
    public = _public_bytes(key.public_key())
    fitting = [each for each in stored if _public_bytes(each.certificate.public_key()) == public]
    fitting.sort(key=lambda each: (each.friendly_name or b"").decode("utf-8").lower() != alias)
    return fitting[0].certificate if fitting else None


def _public_bytes(key) -> bytes:  # type: ignore[no-untyped-def]
    from cryptography.hazmat.primitives import serialization

    found: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def _trust_of_pkcs12(data: bytes, password: str | None) -> list[bytes]:
    store = _load_pkcs12(data, password)
    from cryptography.hazmat.primitives import serialization

    return [
        each.certificate.public_bytes(serialization.Encoding.PEM) for each in store.additional_certs
    ]


def _load_pkcs12(data: bytes, password: str | None):  # type: ignore[no-untyped-def]
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ValueError(
            "it is a PKCS12 store, which needs one more package: pip install 'ottla[keystores]'"
        ) from None
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        raise ValueError("it is no PKCS12 store, or its password is wrong") from None


def _certificates(chain: list[bytes]) -> list[bytes]:
    return [_pem("CERTIFICATE", each) for each in chain]


def _pem(label: str, der: bytes) -> bytes:
    """The text form of an element in DER (RFC 7468)."""
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n".encode()
