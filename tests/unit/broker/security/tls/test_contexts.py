from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.security.tls.contexts import listener_context, openssl_name, peer_context
from tests.doubles.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def config(**settings: object) -> BrokerConfig:
    return BrokerConfig(
        {
            "listeners": "SSL://127.0.0.1:0",
            "security.inter.broker.protocol": "SSL",
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
    )


def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Both sides in memory; the version of TLS, or the exception of who gives up first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    done = set()
    for _ in range(10):
        for side in (there, here):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    with suppress(ssl.SSLWantReadError):
        there.read(1)  # With TLS 1.3 the server refuses a client after its last word.
    assert len(done) == 2
    return there.version()


def test_a_file_with_key_and_certificate(certificates: Certificates) -> None:
    server = listener_context(
        config(ssl_keystore_type="PEM", ssl_keystore_location=certificates.server_path), "SSL"
    )
    assert shakes_hands(server, certificates.client_context()) == "TLSv1.3"


def test_keys_as_text(certificates: Certificates) -> None:
    text = certificates.server_path.read_text()
    key, marker, chain = text.partition("-----BEGIN CERTIFICATE-----")
    server = listener_context(
        config(ssl_keystore_key=key, ssl_keystore_certificate_chain=marker + chain), "SSL"
    )
    assert shakes_hands(server, certificates.client_context()) == "TLSv1.3"


def test_a_listener_of_its_own_wins(certificates: Certificates) -> None:
    settings = config(
        ssl_keystore_location="/nowhere.pem",
        listener_name_ssl_ssl_keystore_location=certificates.server_path,
    )
    assert shakes_hands(listener_context(settings, "SSL"), certificates.client_context())


def test_client_certificates_are_requested(certificates: Certificates) -> None:
    server = listener_context(
        config(
            ssl_keystore_location=certificates.server_path,
            ssl_truststore_location=certificates.authority_path,
            ssl_client_auth="required",
        ),
        "SSL",
    )
    assert shakes_hands(server, certificates.client_context(with_certificate=True))
    with pytest.raises(ssl.SSLError):
        shakes_hands(server, certificates.client_context())


def test_brokers_connect_to_each_other(certificates: Certificates) -> None:
    settings = config(
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_certificates=certificates.authority_path.read_text(),
        ssl_client_auth="required",
    )
    client = peer_context(settings)
    assert client is not None
    assert client.check_hostname
    assert shakes_hands(listener_context(settings, "SSL"), client) == "TLSv1.3"


def test_plain_brokers_need_nothing() -> None:
    assert peer_context(BrokerConfig()) is None


def test_host_names_may_go_unchecked(certificates: Certificates) -> None:
    client = peer_context(
        config(
            ssl_truststore_location=certificates.authority_path,
            ssl_endpoint_identification_algorithm="",
        )
    )
    assert client is not None
    assert not client.check_hostname


def test_versions_and_ciphers_are_limited(certificates: Certificates) -> None:
    server = listener_context(
        config(
            ssl_keystore_location=certificates.server_path,
            ssl_enabled_protocols="TLSv1.2",
            ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ),
        "SSL",
    )
    assert shakes_hands(server, certificates.client_context()) == "TLSv1.2"
    older = [each["name"] for each in server.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert older == ["ECDHE-ECDSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
    ],
)
def test_cipher_names_of_openssl(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


def encrypted(certificates: Certificates, path: Path) -> Path:
    content = certificates.server_path.read_bytes()
    key = serialization.load_pem_private_key(content, None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        + content[content.index(b"-----BEGIN CERTIFICATE") :]
    )
    return path


def test_an_encrypted_key(certificates: Certificates, tmp_path: Path) -> None:
    path = encrypted(certificates, tmp_path / "server.pem")
    server = listener_context(config(ssl_keystore_location=path, ssl_key_password="secret"), "SSL")
    assert shakes_hands(server, certificates.client_context())
    for password in ("wrong", None):
        settings = {"ssl_keystore_location": path}
        if password is not None:
            settings["ssl_key_password"] = password
        with pytest.raises(ConfigError, match=r"Is ssl\.key\.password right\?"):
            listener_context(config(**settings), "SSL")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xfe\xed\xfe\xed\x00\x00", "is a Java key store .* keytool -importkeystore"),
        (b"\x30\x82\x04", "looks like PKCS12.* openssl pkcs12 -in"),
        (b"nonsense", "No private key with its certificate can be read"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_keys(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "keystore"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        listener_context(config(ssl_keystore_location=path), "SSL")


def test_trust_that_cannot_be_read(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "trust.pem"
    path.write_bytes(b"nonsense")
    settings = config(
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_location=path,
        ssl_client_auth="requested",
    )
    with pytest.raises(ConfigError, match=r"No certificates can be read from .*trust\.pem"):
        listener_context(settings, "SSL")


def test_no_keys_at_all() -> None:
    with pytest.raises(ConfigError, match=r"needs a key .*ssl\.keystore\.type=PEM"):
        listener_context(config(), "SSL")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl_enabled_protocols": "SSLv3"}, r"ssl\.enabled\.protocols: SSLv3"),
        ({"ssl_cipher_suites": "TLS_ROT_WITH_13"}, r"ssl\.cipher\.suites: OpenSSL has none"),
    ],
)
def test_limits_that_do_not_exist(
    certificates: Certificates, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        listener_context(config(ssl_keystore_location=certificates.server_path, **settings), "SSL")
