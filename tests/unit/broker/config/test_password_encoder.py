"""Passwords in the form in which Kafka stores them."""

from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.password_encoder import PasswordEncoder

# By the PasswordEncoder of Kafka 3.9.1.
BY_KAFKA = {
    "AES/CBC": (
        "initializationVector:iwXFxE+uma5Mc0+zxwt+Uw==,keyLength:128,salt:93t8mgIHdrLfQzvjAq47QIa"
        "qO9VyAtmDfpnizs83DtaEQbsTS8otsyXPlJNd8/lfYFwvAM0iS4bnWA9PistW51hg3/qRZ2A6R69WBbadaw4AF84"
        "H/xSsABP5ccZB732PUqPiBHnDDheIc+VzumUdhH5mT+e+IWTy2yH/lmT6GUHDPysKN5V1XDBmVUUuFI73fIoZKqX"
        "6Y21mq0k1Q9imGpUes6RVCGC8Kldqy2tleKDDg/YdASTrALH2Pa//5CDomdju0cOtsoFkq+knPx3eG+3wXZi7UNa"
        "j75Js4C88LMsASl+tgzc/IJZGFqzq5eMUmzpwyFuQ1iMERF+69BueRA==,keyFactoryAlgorithm:PBKDF2With"
        "HmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:10,encryp"
        "tedPassword:wYE0B6+ScETg+YflJPH3Ww=="
    ),
    "AES/GCM": (
        "initializationVector:Srcf4BojdIUUDFtE,keyLength:256,salt:jSR11+uG0iVMOdBCgSsqPVVFaAFNJjf"
        "XsudoNVY+qwxLmuFgJusvBKcDhNklZ+E9TQSPiqUTGJbc+uHeEcAWc9glpYcbn8w0cULpoYd8TEZH21CJgSQ4T0V"
        "TI4bJqzsYCOr8NkuSjUIi5EpMBnN3wEm/N6fZye07jJv+23AlqQDOnewZUKvQbNRFaHvK7L8vcW2lnGBnG+1czc+"
        "VCpQx3U3Ldb6p0PjezMGBG+9JN3eqhp3gHV8myAdDQqCpaJgeO6XI4klDEmWuRb7i7aQUbyrCbHcONZimBaOD7U+"
        "sqeim5JC1QuecGQyolD+Fp4Hh2JuRHqIoZoDzU/8+jd/qYQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA2"
        "56,cipherAlgorithm:AES/GCM/NoPadding,authenticationTagLength:128,iterations:1024,passwor"
        "dLength:10,encryptedPassword:A9+XhOApvSTxBthNr4ctCxSi+bnK3gMnsKrkEPo="
    ),
}


@pytest.mark.parametrize("cipher", ["AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"])
@pytest.mark.parametrize("password", ["s3cret-ü-\N{GRINNING FACE}", "x" * 2000, "16-bytes-long-!!"])
def test_what_is_encoded_is_decoded(cipher: str, password: str) -> None:
    encoder = PasswordEncoder("the secret", cipher=cipher, iterations=1024)
    text = encoder.encode(password)
    assert password not in text
    assert text != encoder.encode(password)
    assert PasswordEncoder("the secret").decode(text) == password
    with pytest.raises(ConfigError, match="cannot be decoded"):
        PasswordEncoder("another secret").decode(text)


def test_the_parameters_of_the_settings_are_in_the_text() -> None:
    given = {
        "cipher.algorithm": "AES/GCM/NoPadding",
        "iterations": "2000",
        "key.length": "256",
        "keyfactory.algorithm": "PBKDF2WithHmacSHA256",
        "secret": "the secret",
    }
    config = BrokerConfig({f"password.encoder.{name}": text for name, text in given.items()})
    stored = config.secrets.encode_all({"listener.name.plaintext.ssl.key.password": "s3cret"})
    (text,) = stored.values()
    for words in (
        *("cipherAlgorithm:AES/GCM/NoPadding", "iterations:2000", "keyLength:256"),
        "keyFactoryAlgorithm:PBKDF2WithHmacSHA256",
    ):
        assert words in text.split(",")


@pytest.mark.parametrize("name", sorted(BY_KAFKA))
def test_what_kafka_encoded_is_decoded(name: str) -> None:
    assert (
        PasswordEncoder("dynamic-config-secret").decode(BY_KAFKA[name])
        == "s3cret-ü\N{GRINNING FACE}"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("iterations:1024", "iterations:1000000000000"),
        ("iterations:1024", "iterations:0"),
        ("keyLength:128", "keyLength:4096"),
        ("passwordLength:6", "passwordLength:7"),
        ("cipherAlgorithm:AES/CBC/PKCS5Padding", "cipherAlgorithm:DES"),
        ("keyFactoryAlgorithm:PBKDF2WithHmacSHA512", "keyFactoryAlgorithm:x"),
        ("salt:", "salt:*"),
        ("initializationVector:", "initializationVector:AAAA"),
        ("encryptedPassword:", "encryptedPassword:AAAA"),
        ("encryptedPassword:", "password:"),
    ],
)
def test_what_is_damaged_is_not_decoded(old: str, new: str) -> None:
    text = PasswordEncoder("the secret", iterations=1024).encode("s3cret")
    assert old in text
    with pytest.raises(ConfigError, match="cannot be decoded") as error:
        PasswordEncoder("the secret").decode(text.replace(old, new))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("text", ["", "s3cret", "a:b", ",", "salt:AAAA"])
def test_what_was_not_encoded_is_not_decoded(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be decoded"):
        PasswordEncoder("the secret").decode(text)


@pytest.mark.parametrize(
    "settings",
    [{"cipher": "DES"}, {"key_factory": "x"}, {"key_bits": 8}, {"iterations": 1 << 30}],
)
def test_parameters_that_there_are_not(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"password\.encoder\."):
        PasswordEncoder("the secret", **settings)  # type: ignore[arg-type]
