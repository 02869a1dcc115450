from __future__ import annotations

import os
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.tls import listener_tls
from ottla.broker.security.tls.listener_tls import ListenerTls
from ottla.broker.security.tls.trust_check import check_handshake
from tests.doubles import odd_subjects
from tests.doubles.certificates import Certificates
from tests.unit.broker.security.tls.test_contexts import shakes_hands


@pytest.fixture
def old(tmp_path: Path) -> Certificates:
    (tmp_path / "old").mkdir()
    return Certificates(tmp_path / "old")


@pytest.fixture
def new(tmp_path: Path) -> Certificates:
    (tmp_path / "new").mkdir()
    return Certificates(tmp_path / "new", "another authority")


def broker_tls(certificates: Certificates, **more: str) -> ListenerTls:
    return ListenerTls(
        BrokerConfig(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "inter.broker.listener.name": "SSL",
                "ssl.keystore.location": str(certificates.server_path),
                "ssl.truststore.location": str(certificates.authority_path),
                "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
                **{name.replace("_", "."): text for name, text in more.items()},
            }
        )
    )


def watched(tls: ListenerTls) -> list[ssl.SSLContext]:
    """The contexts of the listener: the first, then each new one."""
    contexts = [tls.listener("SSL").context]
    tls.on_renewed("SSL", contexts.append)
    return contexts


def test_a_listener_and_its_peers(old: Certificates) -> None:
    tls = broker_tls(old)
    listener = tls.listener("SSL")
    peer = tls.peer()
    assert peer is not None
    assert shakes_hands(listener.context, peer) == "TLSv1.3"
    certificate = odd_subjects.certificate(odd_subjects.simple(("CN", "me")))
    assert listener.principal_of_certificate(certificate) == Principal("User", "me")


def test_other_brokers_are_reached_in_plain_text(old: Certificates) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(old.server_path),
    }
    assert ListenerTls(BrokerConfig(settings)).peer() is None


def test_a_new_certificate_is_used_as_soon_as_it_is_there(
    old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = broker_tls(old)
    contexts = watched(tls)
    shutil.copy(new.server_path, old.server_path)
    # Not before the files are checked.
    assert len(contexts) == 1
    tls.check()
    assert shakes_hands(contexts[-1], new.client_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(contexts[-1], old.client_context())
    with caplog.at_level("INFO"):
        tls.check()
    assert caplog.text == "", "nothing has changed since"


def test_an_authority_that_was_removed_is_no_longer_trusted(
    old: Certificates, new: Certificates
) -> None:
    both = old.authority_path.read_bytes() + new.authority_path.read_bytes()
    only = old.authority_path.read_bytes()
    old.authority_path.write_bytes(both)
    tls = broker_tls(old, ssl_client_auth="required")
    contexts = watched(tls)
    client = new.client_context(with_certificate=True)
    client.load_verify_locations(cadata=both.decode())
    assert shakes_hands(contexts[-1], client)
    old.authority_path.write_bytes(only)
    tls.check()
    with pytest.raises(ssl.SSLError):
        shakes_hands(contexts[-1], client)
    peer = tls.peer()
    assert peer is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(new.server_context(), peer)


def test_a_certificate_of_another_name_is_not_taken(
    old: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = broker_tls(old)
    contexts = watched(tls)
    shutil.copy(old.client_path, old.server_path)
    tls.check()
    assert len(contexts) == 1
    assert "The subject of the new certificate is another one (client, before: server)" in (
        caplog.text
    )


def test_another_name_can_be_allowed(old: Certificates) -> None:
    tls = broker_tls(old, ssl_allow_dn_changes="true")
    contexts = watched(tls)
    shutil.copy(old.client_path, old.server_path)
    tls.check()
    assert len(contexts) == 2


def test_alternative_names_stay_unless_that_is_allowed(
    old: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    strict, loose = broker_tls(old), broker_tls(old, ssl_allow_san_changes="true")
    kept, replaced = watched(strict), watched(loose)
    old.issue("server", addresses=("127.0.0.2",))
    strict.check()
    loose.check()
    assert len(kept) == 1
    assert "lacks subject alternative names of the old one" in caplog.text
    assert len(replaced) == 2
    old.issue("server", addresses=("127.0.0.1", "127.0.0.3"))
    strict.check()
    assert len(kept) == 2


def test_a_dynamic_setting_is_validated_and_applied(
    old: Certificates, new: Certificates, tmp_path: Path
) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    config = BrokerConfig(
        {
            "listeners": "SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.location": str(old.server_path),
        }
    )
    tls = ListenerTls(config)
    contexts = watched(tls)
    with pytest.raises(ConfigError, match=r"nowhere\.pem cannot be read"):
        tls.validate(config.with_dynamic(broker={name: "/nowhere.pem"}), [name])
    tls.validate(config.with_dynamic(broker={name: str(new.server_path)}), [name])
    assert len(contexts) == 1
    tls.settings_changed(config.update_dynamic({}, {name: str(new.server_path)}))
    assert shakes_hands(contexts[-1], new.client_context())


def test_a_broken_file_changes_nothing(
    old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = broker_tls(old)
    contexts = watched(tls)
    good = old.server_path.read_bytes()
    old.server_path.write_bytes(good[:200])
    tls.check()
    assert "listener SSL keeps its previous certificates: No private key" in caplog.text
    assert shakes_hands(contexts[-1], old.client_context())
    os.remove(old.server_path)
    tls.check()
    assert shakes_hands(contexts[-1], old.client_context())
    old.server_path.write_bytes(new.server_path.read_bytes())
    tls.check()
    assert shakes_hands(contexts[-1], new.client_context())


CLUSTER = {"zookeeper_connect": "127.0.0.1:1"}


def test_a_broker_of_a_cluster_has_to_trust_its_own_certificate(
    old: Certificates, new: Certificates
) -> None:
    broker_tls(old, **CLUSTER)
    with pytest.raises(ConfigError, match=r"so other brokers could not either: .*certificate"):
        broker_tls(old, **CLUSTER, ssl_truststore_location=str(new.authority_path))
    # A single broker connects to no other.
    broker_tls(old, ssl_truststore_location=str(new.authority_path))


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_keys_of_brokers_that_brokers_do_not_trust_are_not_used(
    old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture, client_auth: str
) -> None:
    tls = broker_tls(old, **CLUSTER, ssl_client_auth=client_auth)
    contexts = watched(tls)
    peer = tls.peer()
    previous, trusted = old.server_path.read_bytes(), old.authority_path.read_bytes()
    shutil.copy(new.server_path, old.server_path)
    tls.check()
    assert "listener SSL keeps its previous certificates: A client with" in caplog.text
    assert contexts == [contexts[0]]
    assert tls.peer() is peer
    old.server_path.write_bytes(previous)
    old.authority_path.write_bytes(trusted + new.authority_path.read_bytes())
    tls.check()
    shutil.copy(new.server_path, old.server_path)
    tls.check()
    assert len(contexts) == 3
    assert tls.peer() is not peer
    shutil.copy(new.authority_path, old.authority_path)
    tls.check()
    assert len(contexts) == 4


def test_other_listeners_need_no_trust_in_themselves(old: Certificates, new: Certificates) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "zookeeper.connect": "127.0.0.1:1",
        "ssl.keystore.location": str(old.server_path),
        "ssl.truststore.location": str(new.authority_path),
    }
    watched(ListenerTls(BrokerConfig(settings)))


def test_what_the_jvm_looks_up_is_not_left_out_silently(
    old: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Dcom.sun.net.ssl.checkRevocation=true")
    with pytest.raises(ConfigError, match="with OCSP or at"):
        broker_tls(old)
    monkeypatch.setenv("KAFKA_OPTS", "-Dcom.sun.net.ssl.checkRevocation=false")
    broker_tls(old)


def test_a_file_with_the_time_and_size_of_the_previous_one(old: Certificates) -> None:
    """As tools that copy keep them."""
    tls = broker_tls(old)
    contexts = watched(tls)
    before = old.server_path.stat()
    other = old.issue("server", "renewed")
    content = other.read_bytes()
    size = max(len(content), before.st_size)
    for path in (old.server_path, other):
        path.write_bytes(path.read_bytes().ljust(size, b"\n"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    tls.check()
    seen = len(contexts)
    other.replace(old.server_path)
    tls.check()
    assert len(contexts) == seen + 1


def test_stores_that_have_expired_are_replaced(
    old: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker can connect with them, so a new one need not fit them."""
    tls = broker_tls(old, **CLUSTER)
    contexts = watched(tls)
    expired = contexts[0]

    def check(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        if server is expired:
            raise ConfigError("certificate has expired")
        check_handshake(server, client)

    monkeypatch.setattr(listener_tls, "check_handshake", check)
    old.issue("server")
    tls.check()
    assert len(contexts) == 2


def test_keys_of_a_text_are_checked_at_the_change(old: Certificates) -> None:
    config = BrokerConfig(
        {
            "listeners": "SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.location": str(old.server_path),
        }
    )
    tls = ListenerTls(config)
    key, marker, chain = old.server_path.read_text().partition("-----BEGIN CERTIFICATE")
    prefix = "listener.name.ssl.ssl.keystore."
    text = {f"{prefix}key": key, f"{prefix}certificate.chain": marker + chain}

    def validate(**changed: str) -> None:
        more = {f"{prefix}{name}": value for name, value in changed.items()}
        settings = {**text, f"{prefix}type": "PEM", **more}
        tls.validate(config.with_dynamic(broker=settings), list(settings))

    with pytest.raises(ConfigError, match="Both SSL key store location and separate private key"):
        validate()
    validate(location="")
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.key: no PRIVATE KEY is found"):
        validate(location="", key="garbage")
    with pytest.raises(ConfigError, match="SSL key store password cannot be specified"):
        validate(location="", password="x")


def resumes(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bool, ssl.SSLSession | None]:
    """Whether a handshake resumes a session, and the session that the client gets."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1", session=session)
    for _ in range(10):
        for side in (there, here):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    here.write(b"x")
    there.read(1)  # With TLS 1.3 the ticket comes after the handshake.
    return bool(there.session_reused), there.session


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_session_ends_with_the_trust_that_it_was_made_under(
    old: Certificates, new: Certificates, version: str
) -> None:
    only = old.authority_path.read_bytes()
    old.authority_path.write_bytes(only + new.authority_path.read_bytes())
    tls = broker_tls(old, ssl_client_auth="required", ssl_enabled_protocols=version)
    contexts = watched(tls)
    client = new.client_context(with_certificate=True)
    client.load_verify_locations(cadata=only.decode())
    _, session = resumes(contexts[-1], client)
    assert resumes(contexts[-1], client, session)[0], "as long as the trust is the same"
    old.authority_path.write_bytes(only)
    tls.check()
    with pytest.raises(ssl.SSLError):
        resumes(contexts[-1], client, session)


def test_what_is_not_negotiated(old: Certificates) -> None:
    context = watched(broker_tls(old))[0]
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_client_may_come_without_a_certificate_but_not_with_a_wrong_one(
    old: Certificates, new: Certificates
) -> None:
    context = watched(broker_tls(old, ssl_client_auth="requested"))[0]
    assert shakes_hands(context, old.client_context())
    stranger = new.client_context(with_certificate=True)
    stranger.load_verify_locations(old.authority_path)
    with pytest.raises(ssl.SSLError):
        shakes_hands(context, stranger)


@pytest.mark.parametrize(("algorithm", "is_reached"), [("https", False), ("", True)])
def test_brokers_check_the_names_of_each_other(
    old: Certificates, algorithm: str, is_reached: bool
) -> None:
    old.issue("server", addresses=("127.0.0.9",))
    tls = broker_tls(old, ssl_endpoint_identification_algorithm=algorithm)
    peer = tls.peer()
    assert peer is not None
    if is_reached:
        assert shakes_hands(tls.listener("SSL").context, peer)
        return
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shakes_hands(tls.listener("SSL").context, peer)
