from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.security.tls import contexts
from tests.doubles.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def listener_context(settings: BrokerConfig, name: str) -> ssl.SSLContext:
    return contexts.listener_context(settings, name).context


def peer_context(settings: BrokerConfig) -> ssl.SSLContext | None:
    made = contexts.peer_context(settings)
    return None if made is None else made.context


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
        config(
            ssl_keystore_type="PEM",
            ssl_keystore_key=key,
            ssl_keystore_certificate_chain=marker + chain,
        ),
        "SSL",
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
        ssl_truststore_type="PEM",
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
        (b"\xfe\xed\xfe\xed\x00\x00", r"it needs ssl\.keystore\.password"),
        (b"\xce\xce\xce\xce\x00\x00", "is a JCEKS store, .* keytool -importkeystore"),
        (b"\x30\x82\x04", "it is no PKCS12 store, or its password is wrong"),
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
    with pytest.raises(ConfigError, match=r"needs a key .*ssl\.keystore\.location"):
        listener_context(config(), "SSL")


def test_a_revoked_certificate_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked.pem"
    settings = config(
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_location=certificates.authority_path,
        ssl_client_auth="required",
        ottla_ssl_crl_location=revoked,
    )
    client = certificates.client_context(with_certificate=True)
    revoked.write_bytes(certificates.revocation_list())
    assert shakes_hands(listener_context(settings, "SSL"), client)
    revoked.write_bytes(certificates.revocation_list(certificates.client_path))
    with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REVOKED|certificate revoked"):
        shakes_hands(listener_context(settings, "SSL"), client)


def test_a_file_without_a_revocation_list(certificates: Certificates) -> None:
    settings = config(
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_location=certificates.authority_path,
        ssl_client_auth="required",
        ottla_ssl_crl_location=certificates.authority_path,
    )
    with pytest.raises(ConfigError, match=r"ottla\.ssl\.crl\.location: .* has no X509 CRL"):
        listener_context(settings, "SSL")


def test_a_listener_with_sasl_has_its_own_setting_for_certificates_of_clients(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,A://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.location": str(certificates.server_path),
        "ssl.client.auth": "required",
    }
    assert listener_context(BrokerConfig(settings), "A").verify_mode is ssl.CERT_NONE
    assert "set listener.name.a.ssl.client.auth to ask" in caplog.text
    settings["listener.name.a.ssl.client.auth"] = "requested"
    assert listener_context(BrokerConfig(settings), "A").verify_mode is ssl.CERT_OPTIONAL


def test_no_client_renegotiates(certificates: Certificates) -> None:
    server = listener_context(config(ssl_keystore_location=certificates.server_path), "SSL")
    assert server.options & ssl.OP_NO_RENEGOTIATION


def self_signed(name: str) -> tuple[str, str]:
    """A key and a certificate in PEM without any extension, as `keytool -genkeypair` makes them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return secret.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


def test_each_of_several_certificates_with_the_same_name_is_trusted() -> None:
    """As in Java: the certificates of all brokers of a cluster, or the old one and the new one."""
    made = [self_signed("broker") for _ in range(3)]
    trusted = "".join(certificate for _, certificate in made)
    for key, certificate in made:
        settings = config(
            ssl_keystore_type="PEM",
            ssl_keystore_key=key,
            ssl_keystore_certificate_chain=certificate,
            ssl_truststore_type="PEM",
            ssl_truststore_certificates=trusted,
            ssl_client_auth="required",
            ssl_endpoint_identification_algorithm="",
        )
        client = peer_context(settings)
        assert client is not None
        assert shakes_hands(listener_context(settings, "SSL"), client) == "TLSv1.3"


def test_a_certificate_that_is_not_in_the_truststore_is_not_trusted() -> None:
    """Also not if its name is that of one that is."""
    (key, certificate), (_, other) = self_signed("broker"), self_signed("broker")
    settings = config(
        ssl_keystore_type="PEM",
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=certificate,
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=other,
        ssl_endpoint_identification_algorithm="",
    )
    client = peer_context(settings)
    assert client is not None
    with pytest.raises(ssl.SSLError, match=r"self.signed"):
        shakes_hands(listener_context(settings, "SSL"), client)
