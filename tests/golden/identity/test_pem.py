"""Keys and trust in settings, beside Kafka's `DefaultSslEngineFactory`.

Where Kafka reads a text, the same certificates are found here; where it rejects the settings, so
does this broker, except for forms of text that Kafka could read but does not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.key_stores import certificates_of, check_sources
from ottla.broker.security.tls.contexts import listener_context
from tests.doubles import pem_forms
from tests.doubles.apache_kafka import kafka_library
from tests.doubles.certificates import Certificates
from tests.golden.identity.regenerate import ask
from tests.unit.broker.security.tls.test_contexts import config

KEY, CHAIN, TRUST = (
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
)
PASSWORD = "ssl.key.password"
STORES = Path(__file__).resolve().parents[2] / "unit" / "broker" / "config" / "stores"

Settings = dict[str, str]


class Texts:
    """A key, plain and encrypted, its chain of two certificates, and two trusted certificates."""

    def __init__(self, folder: Path) -> None:
        made = Certificates(folder)
        content = made.server_path.read_text()
        self.key, marker, leaf = content.partition("-----BEGIN CERTIFICATE")
        authority = made.authority_path.read_text()
        self.chain = marker + leaf + authority
        self.trust = authority + marker + leaf
        self.file = str(made.server_path)
        self.trust_file = str(made.authority_path)
        loaded = serialization.load_pem_private_key(self.key.encode(), None)
        self.encrypted = loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ).decode()

    def settings(self, form: Callable[[str], str], *, encrypted: bool = False) -> Settings:
        found = {
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            KEY: form(self.encrypted if encrypted else self.key),
            CHAIN: form(self.chain),
            TRUST: form(self.trust),
        }
        return {**found, PASSWORD: "secret"} if encrypted else found


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    return Texts(tmp_path_factory.mktemp("texts"))


def certificates_found(settings: Settings) -> tuple[list[bytes], list[bytes]]:
    """Of the key and of the truststore. Raises ConfigError."""
    check_sources(settings.get)
    names = {name.replace(".", "_"): text for name, text in settings.items()}
    made = listener_context(config(**names, ssl_client_auth="required"), "SSL")
    assert made.chain is not None
    return [b"loaded"], made.context.get_ca_certs(True)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("form", [*pem_forms.KAFKAS, *pem_forms.OTHERS])
def test_every_form_of_text_is_read(texts: Texts, form: str, encrypted: bool) -> None:
    written = {**pem_forms.KAFKAS, **pem_forms.OTHERS}[form]
    found = certificates_found(texts.settings(written, encrypted=encrypted))
    assert found == certificates_found(texts.settings(str))


@pytest.mark.parametrize("name", [KEY, CHAIN, TRUST])
def test_damaged_texts_are_rejected(texts: Texts, name: str) -> None:
    settings = texts.settings(str)
    for text in pem_forms.damaged(settings[name], random.Random(1)):
        if not text:
            continue
        with pytest.raises(ConfigError):
            certificates_found({**settings, name: text})


def conflicts(texts: Texts) -> list[Settings]:
    """Keys and trust that settings name twice, or in part."""
    keys = {"ssl.keystore.type": "PEM", KEY: texts.key, CHAIN: texts.chain}
    trust = {"ssl.truststore.type": "PEM", TRUST: texts.trust}
    return [
        {KEY: texts.key, CHAIN: texts.chain},
        {"ssl.keystore.type": "PEM", KEY: texts.key},
        {"ssl.keystore.type": "PEM", CHAIN: texts.chain},
        {**keys, "ssl.keystore.location": texts.file},
        {**keys, "ssl.keystore.password": "x"},
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": texts.file,
            "ssl.keystore.password": "x",
        },
        {"ssl.keystore.password": "x"},
        {TRUST: texts.trust},
        {**trust, "ssl.truststore.location": texts.trust_file},
        {**trust, "ssl.truststore.password": "x"},
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": texts.trust_file,
            "ssl.truststore.password": "x",
        },
        {"ssl.truststore.password": "x"},
    ]


_WITH_PEM = (
    "SSL key store password cannot be specified with PEM format, only key password may be specified"
)
#: Kafka's sentences for them, in the same order.
SENTENCES = (
    "SSL private key can be specified only for PEM, but key store type is JKS.",
    "SSL private key is specified, but certificate chain is not specified.",
    "SSL certificate chain is specified, but private key is not specified",
    "Both SSL key store location and separate private key are specified.",
    f"{_WITH_PEM}.",
    _WITH_PEM,
    "SSL key store is not specified, but key store password is specified.",
    "SSL trust store certs can be specified only for PEM, but trust store type is JKS.",
    "Both SSL trust store location and separate trust certificates are specified.",
    "SSL trust store password cannot be specified for PEM format.",
    "SSL trust store password cannot be specified for PEM format.",
    "SSL trust store is not specified, but trust store password is specified.",
)


def test_one_source_only_in_kafkas_words(texts: Texts) -> None:
    for settings, sentence in zip(conflicts(texts), SENTENCES, strict=True):
        with pytest.raises(ConfigError) as raised:
            check_sources(settings.get)
        assert str(raised.value).startswith(sentence.rstrip("."))


def test_kafka_finds_the_same(texts: Texts) -> None:
    if shutil.which("javac") is None:
        pytest.skip("a JDK runs Kafka's class: there is no `javac` on the PATH")
    forms = {**pem_forms.KAFKAS, **pem_forms.OTHERS}
    # Java 17 does not read the encryption of keys that OpenSSL 3 and `cryptography` write.
    read = [(name, texts.settings(form)) for name, form in forms.items()]
    asked = [{"ssl": each} for each in (*(each for _, each in read), *conflicts(texts))]
    _, answers = ask(kafka_library(), asked)
    chain, trust = (certificates_of(text.encode()) for text in (texts.chain, texts.trust))
    whole = "".join(f"{each.hex()} " for each in chain) + "|"
    whole += "".join(f" {each.hex()}" for each in trust)
    for (name, _), answer in zip(read, answers, strict=False):
        if name in pem_forms.KAFKAS:
            assert answer.get("found") == whole, name
        else:  # nothing else than here, if anything
            assert all(each in whole for each in answer.get("found", "").split(" ")), name
    for sentence, answer in zip(SENTENCES, answers[len(read) :], strict=True):
        assert answer["message"] == sentence
