"""Keys and trust in the formats of Java and OpenSSL; the stores are keytool's."""

from __future__ import annotations

import builtins
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.java_key_store import read_java_key_store
from ottla.broker.config.key_stores import (
    certificates_of,
    read_keys,
    read_trust,
)
from ottla.broker.security.tls.certificate_identity import CertificateIdentity
from ottla.broker.security.tls.contexts import listener_context
from tests.doubles.certificates import Certificates
from tests.unit.broker.security.tls.test_contexts import config, shakes_hands

STORES = Path(__file__).parent / "stores"
SETTING = "ssl.keystore"


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_a_listener_with_stores_of_java(kind: str) -> None:
    server = listener_context(
        config(
            ssl_keystore_location=STORES / f"keys.{kind}",
            ssl_keystore_type=kind.upper(),
            ssl_keystore_password="storepass",
            ssl_key_password="keypassw" if kind == "jks" else "storepass",
            ssl_truststore_location=STORES / f"trust.{kind}",
            ssl_truststore_password="storepass",
            ssl_client_auth="requested",
        ),
        "SSL",
    )
    client = ssl.create_default_context(cafile=str(STORES / f"{kind}.pem"))
    assert shakes_hands(server.context, client) == "TLSv1.3"
    assert server.certificates
    assert [text for _, text in server.certificates[0].identity.subject] == ["acme", "broker one"]
    assert len(server.certificates[0].identity.names) == 2


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_trust_is_what_keytool_exported(kind: str) -> None:
    trust = read_trust("ssl.truststore", str(STORES / f"trust.{kind}"), None, "storepass")
    exported = (STORES / f"{kind}.pem").read_bytes()
    assert certificates_of(trust)[0] == certificates_of(exported)[0]


def test_trust_without_a_password() -> None:
    assert read_trust("ssl.truststore", str(STORES / "trust.jks"), "JKS", None)


@pytest.mark.parametrize(
    ("name", "kind", "store", "key", "words"),
    [
        ("keys.jks", "JKS", "wrong", None, "the password of the store is wrong, or the file was"),
        ("keys.jks", "JKS", "storepass", "wrong", r"of the key is wrong \(ssl\.key\.password\)"),
        ("keys.jks", "JKS", None, None, r"it needs ssl\.keystore\.password"),
        ("trust.jks", "JKS", "storepass", None, "it has no private key"),
        ("keys.pkcs12", "PKCS12", "wrong", None, "or its password is wrong"),
        ("trust.pkcs12", "PKCS12", "storepass", None, "no private key with a certificate"),
        ("keys.jks", "BCFKS", "storepass", None, r"ssl\.keystore\.type: .*BCFKS are not read"),
        ("nothing", "JKS", "storepass", None, "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_read(
    name: str, kind: str, store: str | None, key: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        read_keys(SETTING, str(STORES / name), kind, store, key)
    assert "storepass" not in str(error.value)


def test_pkcs12_names_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'ottla\[keystores\]'"):
        read_keys(SETTING, str(STORES / "keys.pkcs12"), None, "storepass", None)


def test_no_truncation_of_a_store_is_taken_for_one() -> None:
    data = (STORES / "keys.jks").read_bytes()
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"store|cut off|entries|DER"):
            read_java_key_store(data[:size], "storepass")
        with pytest.raises(ValueError, match=r"store|cut off|entries|DER|type|key"):
            read_java_key_store(data[:size], None)


def test_an_identity_is_the_same_in_other_capitals() -> None:
    pem = (STORES / "jks.pem").read_bytes()
    certificate = certificates_of(pem)[0]
    assert certificate is not None
    louder = certificate.replace(b"Broker One", b"BROKER ONE")
    assert louder != certificate
    assert CertificateIdentity.of(louder) == CertificateIdentity.of(certificate)
    other = certificate.replace(b"Broker One", b"Broker Two")
    assert CertificateIdentity.of(other) != CertificateIdentity.of(certificate)


def test_a_store_with_several_keys(tmp_path: Path) -> None:
    """The chain of the one that is used has no certificate of another one. Encrypted as old tools
    do."""
    made = Certificates(tmp_path)
    key, certificate, authority, other = (
        load(path.read_bytes())
        for load, path in (
            (lambda data: serialization.load_pem_private_key(data, None), made.server_path),
            (x509.load_pem_x509_certificate, made.server_path),
            (x509.load_pem_x509_certificate, made.authority_path),
            (x509.load_pem_x509_certificate, made.client_path),
        )
    )
    encryption = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC)
        .hmac_hash(hashes.SHA1())
        .build(b"storepass")
    )
    path = tmp_path / "store.p12"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"one", key, certificate, [other, authority], encryption
        )
    )
    found = certificates_of(read_keys(SETTING, str(path), "PKCS12", "storepass", None)[0].pem)
    assert found == [
        each.public_bytes(serialization.Encoding.DER) for each in (certificate, authority)
    ]
