"""A handshake in memory between two sets of keys and trust."""

from pathlib import Path

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.tls.trust_check import check_handshake
from tests.doubles.certificates import Certificates


def test_both_ends_have_to_trust_each_other(tmp_path: Path) -> None:
    ours = Certificates(tmp_path)
    (tmp_path / "other").mkdir()
    theirs = Certificates(tmp_path / "other", "another authority")
    client = ours.client_context()
    check_handshake(ours.server_context(), client)
    assert client.check_hostname, "as it was"
    with pytest.raises(ConfigError, match="unable to get local issuer certificate"):
        check_handshake(ours.server_context(), theirs.client_context())
    with_certificate = ours.client_context(with_certificate=True)
    check_handshake(ours.server_context(ask_for_certificate=True), with_certificate)
    with pytest.raises(ConfigError, match="could not either"):
        check_handshake(ours.server_context(ask_for_certificate=True), client)


def test_names_do_not_count(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.issue("server", addresses=("127.0.0.9",))
    check_handshake(certificates.server_context(), certificates.client_context())
