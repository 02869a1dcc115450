"""Keys and trusted certificates as PEM, from files in PEM, JKS or PKCS12.

What a file is shows in its first bytes, so that `ssl.keystore.type=JKS`, Kafka's default, reads PEM
and PKCS12 too (Java reads both of its formats under either name). PKCS12 needs `cryptography`.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import NamedTuple

from ottla.broker.config.errors import ConfigError

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
) -> Keys:
    """The keys in the file that `setting`.location names. Raises ConfigError."""
    data = _read(setting, path, kind)
    where = f"{setting}.location: {path}"
    try:
        if _is_jks(data):
            from ottla.broker.config.java_key_store import read_java_key_store

            if store_password is None:
                raise ValueError(f"it needs {setting}.password")
            keys = read_java_key_store(data, store_password, key_password).keys
            if not keys:
                raise ValueError("it has no private key")
            key, chain = keys[0]
            return Keys(b"".join([_pem("PRIVATE KEY", key), *_certificates(chain)]), None)
        if data.startswith(b"\x30"):
            return Keys(_keys_of_pkcs12(data, store_password), None)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.") from None
    return Keys(data, key_password)


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
            return data
    except ValueError as error:
        raise ConfigError(f"{setting}.location: {path}: {error}.") from None
    if not found:
        raise ConfigError(f"{setting}.location: {path} has no trusted certificate.")
    return b"".join(found)


def certificates_of(pem: bytes) -> list[bytes]:
    """The certificates in DER, in their order."""
    return [
        base64.b64decode(b"".join(found.group().splitlines()[1:-1]))
        for found in _CERTIFICATE.finditer(pem)
    ]


def first_certificate(pem: bytes) -> bytes | None:
    """The certificate of a key, in DER: the first in its chain."""
    found = certificates_of(pem)
    return found[0] if found else None


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


def _keys_of_pkcs12(data: bytes, password: str | None) -> bytes:
    store = _load_pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise ValueError("it has no private key with a certificate")
    from cryptography.hazmat.primitives import serialization

    key = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    chain = [store.cert.certificate, *(each.certificate for each in store.additional_certs)]
    return b"".join([key, *(each.public_bytes(serialization.Encoding.PEM) for each in chain)])


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
