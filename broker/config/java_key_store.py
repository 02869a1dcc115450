"""Java's own key stores (JKS): private keys with their certificates, and trusted certificates.

The format is that of `sun.security.provider.JavaKeyStore`, versions 1 and 2. Keys are protected
with Sun's algorithm 1.3.6.1.4.1.42.2.17.1.1. JCEKS and the stores of other providers are not read.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from ottla.protocol.java_order import hashtable_order

MAGIC = b"\xfe\xed\xfe\xed"

_KEY, _CERTIFICATE = 1, 2
_SALT_BYTES = 20
_DIGEST_BYTES = 20
_KEY_ALGORITHM = bytes.fromhex("060a2b060104012a02110101")  # the object identifier in DER
# Entries of a store, and certificates of a chain; a count above it is no store.
_MAX_ENTRIES = 10_000


class JavaKeyStore(NamedTuple):
    """`keys` are (alias, PKCS #8, certificate chain) in the order in which Java lists them, and
    `certificates` trusted ones, all in DER."""

    keys: list[tuple[str, bytes, list[bytes]]]
    certificates: list[bytes]


def read_java_key_store(
    data: bytes, store_password: str | None, key_password: str | None = None
) -> JavaKeyStore:
    """The content of a store. Without `store_password` its integrity is not checked, and it gives
    no keys. Raises ValueError with words that hold no secret."""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if store_password is not None:
        salted = store_password.encode("utf-16-be") + b"Mighty Aphrodite" + body
        if not hmac.compare_digest(hashlib.sha1(salted).digest(), digest):
            raise ValueError("the password of the store is wrong, or the file was changed")
    reader = _Reader(body)
    if reader.take(4) != MAGIC or reader.number(4) not in (1, 2):
        raise ValueError("it is no JKS store of version 1 or 2")
    version = struct.unpack(">I", body[4:8])[0]
    keys: dict[str, tuple[str, bytes, list[bytes]]] = {}
    aliases: list[str] = []
    certificates: list[bytes] = []
    password = key_password if key_password is not None else store_password
    for _ in range(reader.count()):
        tag = reader.number(4)
        # Java's own form of UTF-8: NUL has two bytes, and surrogates stay as they are.
        name = reader.take(reader.number(2)).replace(b"\xc0\x80", b"\0")
        alias = name.decode("utf-8", "surrogatepass")
        aliases.append(alias)
        reader.take(8)  # the date of creation
        if tag == _CERTIFICATE:
            certificates.append(reader.certificate(version))
        elif tag == _KEY:
            protected = reader.take(reader.number(4))
            chain = [reader.certificate(version) for _ in range(reader.count())]
            if password is not None:
                keys[alias] = alias, _recover(protected, password), chain
        else:
            raise ValueError(f"it has an entry of the unknown type {tag}")
    listed = [keys[alias] for alias in hashtable_order(aliases) if alias in keys]
    return JavaKeyStore(listed, certificates)


class _Reader:
    """Takes pieces off the front; ValueError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise ValueError("the file is cut off")
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def count(self) -> int:
        number = self.number(4)
        if number > _MAX_ENTRIES:
            raise ValueError(f"it announces {number} entries")
        return number

    def certificate(self, version: int) -> bytes:
        if version == 2:
            kind = self.take(self.number(2))
            if kind != b"X.509":
                raise ValueError(f"it has a certificate of the type {kind[:20]!r}")
        return self.take(self.number(4))


def _recover(protected: bytes, password: str) -> bytes:
    """The key under Sun's algorithm: a stream of SHA-1 digests over password and salt."""
    blob = _encrypted_data(protected)
    if len(blob) <= _SALT_BYTES + _DIGEST_BYTES:
        raise ValueError("a key in it is cut off")
    salt, encrypted = blob[:_SALT_BYTES], blob[_SALT_BYTES:-_DIGEST_BYTES]
    secret = password.encode("utf-16-be")
    stream, block = bytearray(), salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), blob[-_DIGEST_BYTES:]):
        raise ValueError("the password of the key is wrong (ssl.key.password)")
    return key


def _encrypted_data(protected: bytes) -> bytes:
    """The octets of an EncryptedPrivateKeyInfo (PKCS #8)."""
    from ottla.broker.config.der import children, value_of

    parts = children(value_of(protected))
    if len(parts) != 2 or _KEY_ALGORITHM not in parts[0]:
        raise ValueError("a key in it has another protection than that of JKS")
    return value_of(parts[1])
