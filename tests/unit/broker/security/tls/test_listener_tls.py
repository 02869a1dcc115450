from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.tls.listener_tls import ListenerTls
from tests.doubles.certificates import Certificates
from tests.unit.broker.security.tls.test_contexts import shakes_hands


@pytest.fixture
def old(tmp_path: Path) -> Certificates:
    (tmp_path / "old").mkdir()
    return Certificates(tmp_path / "old")


@pytest.fixture
def new(tmp_path: Path) -> Certificates:
    (tmp_path / "new").mkdir()
    return Certificates(tmp_path / "new")


def broker_tls(certificates: Certificates) -> ListenerTls:
    return ListenerTls(
        BrokerConfig(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "inter.broker.listener.name": "SSL",
                "ssl.keystore.location": str(certificates.server_path),
                "ssl.truststore.location": str(certificates.authority_path),
                "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            }
        )
    )


def test_a_listener_and_its_peers(old: Certificates) -> None:
    tls = broker_tls(old)
    listener = tls.listener("SSL")
    assert tls.peer is not None
    assert shakes_hands(listener.context, tls.peer) == "TLSv1.3"
    certificate = {"subject": ((("commonName", "me"),),)}
    assert listener.principal_of_certificate(certificate) == Principal("User", "me")


def test_other_brokers_are_reached_in_plain_text(old: Certificates) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(old.server_path),
    }
    assert ListenerTls(BrokerConfig(settings)).peer is None


def test_a_new_certificate_is_used_as_soon_as_it_is_there(
    old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = broker_tls(old)
    context = tls.listener("SSL").context
    shutil.copy(new.server_path, old.server_path)
    # Not before the files are checked.
    assert shakes_hands(context, old.client_context())
    tls.check()
    assert shakes_hands(context, new.client_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(context, old.client_context())
    with caplog.at_level("INFO"):
        tls.check()
    assert caplog.text == "", "nothing has changed since"


def test_a_broken_file_changes_nothing(
    old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = broker_tls(old)
    context = tls.listener("SSL").context
    good = old.server_path.read_bytes()
    old.server_path.write_bytes(good[:200])
    tls.check()
    assert "listener SSL keeps its previous certificates: No private key" in caplog.text
    assert shakes_hands(context, old.client_context())
    os.remove(old.server_path)
    tls.check()
    assert shakes_hands(context, old.client_context())
    old.server_path.write_bytes(new.server_path.read_bytes())
    tls.check()
    assert shakes_hands(context, new.client_context())
