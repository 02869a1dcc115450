"""TLS of a broker that may get its first listener with it at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.security.tls.late_tls import LateTls
from tests.doubles.certificates import Certificates

PLAIN = "PLAINTEXT://127.0.0.1:0"
BOTH = f"{PLAIN},SSL://127.0.0.1:0"


def keys(certificates: Certificates) -> dict[str, str]:
    return {
        "listener.name.ssl.ssl.keystore.type": "PEM",
        "listener.name.ssl.ssl.keystore.location": str(certificates.server_path),
    }


def test_without_a_listener_with_tls_nothing_is_made() -> None:
    tls = LateTls(BrokerConfig({"listeners": PLAIN}))
    tls.check()
    tls.settings_changed(["listener.name.ssl.ssl.keystore.location"])
    tls.forget("SSL")
    assert (tls.peer(), tls.certificates()) == (None, {})


def test_a_new_listener_needs_usable_keys(tmp_path: Path) -> None:
    config = BrokerConfig({"listeners": PLAIN})
    tls = LateTls(config)
    with pytest.raises(ConfigError, match=r"ssl\.keystore"):
        tls.validate(config.with_dynamic(broker={"listeners": BOTH}), ["listeners"])
    changes = {"listeners": BOTH, **keys(Certificates(tmp_path))}
    tls.validate(config.with_dynamic(broker=changes), ["listeners"])
    assert tls.certificates() == {}, "it was only validated"


def test_a_listener_that_is_closed_and_opened_again_has_new_contexts(tmp_path: Path) -> None:
    tls = LateTls(BrokerConfig({"listeners": BOTH, **keys(Certificates(tmp_path))}))
    first = tls.listeners().listener("SSL").context
    assert tls.listeners().listener("SSL").context is first
    assert list(tls.certificates()) == ["SSL"]
    tls.forget("SSL")
    assert tls.certificates() == {}
    assert tls.listeners().listener("SSL").context is not first
