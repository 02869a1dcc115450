"""Passwords of dynamic settings as Kafka stores them in ZooKeeper: encrypted (KIP-226).

Kafka's `EncryptingPasswordEncoder`: the key is derived from `password.encoder.secret` with PBKDF2;
the text names all parameters, so that they can change and what is stored stays readable. What
Kafka encodes is decoded here, and the other way round.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import TYPE_CHECKING

from ottla.broker.config.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    from ottla.broker.config.broker_config import BrokerConfig

#: The ciphers that there are, and the length of their initialization vectors in bytes.
CIPHERS = {"AES/CBC/PKCS5Padding": 16, "AES/GCM/NoPadding": 12}
#: The digests of PBKDF2 by the key factories of Java.
KEY_FACTORIES = {
    f"PBKDF2WithHmac{name.upper()}": name
    for name in ("sha1", "sha224", "sha256", "sha384", "sha512")
}
_KEY_BITS = (128, 192, 256)
_SALT_BYTES = 256
_BLOCK_BITS = 128
_TAG_BITS = 128
# A derivation of half a second. The number is stored beside the password, where it is not checked.
_MAX_ITERATIONS = 1_000_000
# A broker has a few passwords; each is decoded at every change of its settings otherwise.
_KEPT = 100


class PasswordEncoder:
    """Encodes and decodes with one secret."""

    def __init__(
        self,
        secret: str,
        *,
        cipher: str = "AES/CBC/PKCS5Padding",
        key_factory: str | None = None,
        key_bits: int = 128,
        iterations: int = 4096,
    ) -> None:
        """The parameters with which it encodes: `password.encoder.*`. Raises ConfigError for those
        that there are not, and without the package that has the ciphers."""
        self._secret = secret.encode()
        self._cipher = cipher
        self._key_factory = key_factory or "PBKDF2WithHmacSHA512"
        self._key_bits = key_bits
        self._iterations = iterations
        self._decoded: dict[str, str] = {}
        _check("password.encoder.cipher.algorithm", cipher, CIPHERS)
        _check("password.encoder.keyfactory.algorithm", self._key_factory, KEY_FACTORIES)
        _check("password.encoder.key.length", key_bits, _KEY_BITS)
        if iterations > _MAX_ITERATIONS:
            raise ConfigError(
                f"password.encoder.iterations is {iterations}: set {_MAX_ITERATIONS} or less."
            )
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise ConfigError(
                "password.encoder.secret needs one more package: pip install 'ottla[keystores]'"
            ) from None

    def encode(self, password: str) -> str:
        """The text for ZooKeeper, another one each time."""
        plain = password.encode()
        salt, vector = os.urandom(_SALT_BYTES), os.urandom(CIPHERS[self._cipher])
        key = self._key(self._key_factory, salt, self._iterations, self._key_bits)
        fields = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": self._cipher,
            "keyLength": str(self._key_bits),
            "salt": _text(salt),
            "iterations": str(self._iterations),
            "encryptedPassword": _text(_encrypt(self._cipher, key, vector, plain)),
            "passwordLength": str(_java_length(password)),
            "initializationVector": _text(vector),
        }
        if "/GCM/" in self._cipher:
            fields["authenticationTagLength"] = str(_TAG_BITS)
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, text: str) -> str:
        """The password. Raises ConfigError, without a part of it."""
        found = self._decoded.get(text)
        if found is None:
            try:
                found = self._decode(text)
            except (ValueError, KeyError):  # also UnicodeDecodeError, InvalidTag
                raise ConfigError(
                    "the stored password cannot be decoded with password.encoder.secret: set it "
                    "again, or restart the broker with password.encoder.old.secret."
                ) from None
            if len(self._decoded) >= _KEPT:
                self._decoded.clear()
            self._decoded[text] = found
        return found

    def _decode(self, text: str) -> str:
        pairs = (item.rpartition(":") for item in text.split(","))
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        cipher, key_bits = fields["cipherAlgorithm"], int(fields["keyLength"])
        iterations = int(fields["iterations"])
        if cipher not in CIPHERS or key_bits not in _KEY_BITS or iterations > _MAX_ITERATIONS:
            raise ValueError
        if "/GCM/" in cipher and int(fields["authenticationTagLength"]) != _TAG_BITS:
            raise ValueError
        salt, vector, encrypted = (
            base64.b64decode(fields[name], validate=True)
            for name in ("salt", "initializationVector", "encryptedPassword")
        )
        key = self._key(fields["keyFactoryAlgorithm"], salt, iterations, key_bits)
        password = _decrypt(cipher, key, vector, encrypted).decode()
        if _java_length(password) != int(fields["passwordLength"]):
            raise ValueError
        return password

    def _key(self, factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
        digest = KEY_FACTORIES[factory]
        return hashlib.pbkdf2_hmac(digest, self._secret, salt, iterations, bits // 8)


def new_encoder(settings: BrokerConfig, secret: str | None) -> PasswordEncoder | None:
    """An encoder of these settings; None without a secret. Raises ConfigError."""
    if not secret:
        return None
    return PasswordEncoder(
        secret,
        cipher=settings.password_encoder_cipher_algorithm,
        key_factory=settings.password_encoder_keyfactory_algorithm,
        key_bits=settings.password_encoder_key_length,
        iterations=settings.password_encoder_iterations,
    )


def _check(setting: str, value: object, known: object) -> None:
    assert isinstance(known, dict | tuple)
    if value not in known:
        raise ConfigError(
            f"{setting}: there is no {value} here, but {', '.join(str(each) for each in known)}."
        )


def _encrypt(cipher: str, key: bytes, vector: bytes, plain: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.padding import PKCS7

    if "/GCM/" in cipher:
        return AESGCM(key).encrypt(vector, plain, None)
    padder = PKCS7(_BLOCK_BITS).padder()
    encryptor = _cbc(key, vector).encryptor()
    return encryptor.update(padder.update(plain) + padder.finalize()) + encryptor.finalize()


def _decrypt(cipher: str, key: bytes, vector: bytes, encrypted: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.padding import PKCS7

    if "/GCM/" in cipher:
        try:
            return AESGCM(key).decrypt(vector, encrypted, None)
        except InvalidTag:
            raise ValueError from None
    decryptor = _cbc(key, vector).decryptor()
    unpadder = PKCS7(_BLOCK_BITS).unpadder()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    return unpadder.update(padded) + unpadder.finalize()


def _cbc(key: bytes, vector: bytes) -> Cipher[CBC]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.CBC(vector))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _java_length(text: str) -> int:
    """The length of a string of Java, which counts UTF-16."""
    return len(text.encode("utf-16-le")) // 2
