"""A renewal never makes things worse: what a listener with a good certificate does not take."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.observability import faults
from ottla.broker.security.tls.listener_tls import ListenerTls

DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)


class Authority:
    """A root, an authority below it, and certificates of a server that each of them signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("root", "middle")}
        self.root = self._signed("root", self._keys["root"], "root")
        self.middle = self._signed("middle", self._keys["middle"], "root")

    def issue(
        self,
        name: str = "server",
        first: timedelta = -DAY,
        last: timedelta = 90 * DAY,
        issuer: str = "middle",
        *,
        with_chain: bool = True,
        with_other_key: bool = False,
    ) -> bytes:
        """A key with its certificate, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(name, key, issuer, NOW + first, NOW + last)
        if with_other_key:
            key = ec.generate_private_key(ec.SECP256R1())
        chain = [certificate, self.middle] if with_chain else [certificate]
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return private + b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain)

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: str,
        first: datetime = NOW - 10 * DAY,
        last: datetime = NOW + 1000 * DAY,
    ) -> x509.Certificate:
        subject, by = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)
        )
        constraints = x509.BasicConstraints(ca=name in self._keys, path_length=None)
        return (
            x509.CertificateBuilder(by, subject, key.public_key(), 7, first, last)
            .add_extension(constraints, critical=True)
            .sign(self._keys[issuer], hashes.SHA256())
        )


class Listener:
    """A single broker's listener whose key store is a file, at a time that the test sets."""

    def __init__(self, path: Path, authority: Authority, content: bytes) -> None:
        self.now = NOW.timestamp()
        self.path = path
        path.write_bytes(content)
        trust = path.with_name("trust.pem")
        trust.write_bytes(authority.root.public_bytes(serialization.Encoding.PEM))
        self.config = BrokerConfig(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "ssl.keystore.location": str(path),
                "ssl.truststore.location": str(trust),
                "ssl.client.auth": "required",
            }
        )
        self.tls = ListenerTls(self.config, lambda: self.now)
        self.contexts = [self.tls.listener("SSL").context]
        self.tls.on_renewed("SSL", self.contexts.append)

    def replace(self, content: bytes) -> bool:
        """Whether the new content of the key store is used."""
        used = len(self.contexts)
        self.path.write_bytes(content)
        self.tls.check()
        return len(self.contexts) > used

    def faults(self) -> list[tuple[str, bool]]:
        found = faults.certificate_faults(self.tls.certificates(), self.now, listeners=1)
        return [(each.name, each.stops) for each in found]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def listener(authority: Authority, tmp_path: Path) -> Listener:
    return Listener(tmp_path / "keys.pem", authority, authority.issue())


REJECTED = [(faults.REJECTED_CERTIFICATE, False)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"first": 2 * DAY}, "it is not valid before"),
        ({"first": -9 * DAY, "last": -DAY}, "it expired on"),
        ({"with_chain": False}, "it comes without the certificate of its issuer"),
        ({"with_other_key": True}, "No private key with its certificate can be read"),
        ({"name": "someone else"}, "The subject of the new certificate is another one"),
    ],
)
def test_a_worse_certificate_does_not_replace_a_good_one(
    authority: Authority,
    listener: Listener,
    content: dict[str, object],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = listener.tls.certificates()["SSL"]
    assert not listener.replace(authority.issue(**content))  # type: ignore[arg-type]
    assert words in caplog.text
    assert listener.faults() == REJECTED
    [fault] = faults.certificate_faults(listener.tls.certificates(), listener.now, 1)
    assert words in fault.problem
    assert listener.tls.certificates()["SSL"][:2] == before[:2]
    listener.tls.check()
    assert listener.faults() == REJECTED, "it stays until there is a good one"
    assert listener.replace(authority.issue())
    assert listener.faults() == []


def test_the_line_has_both_dates(
    authority: Authority, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.replace(authority.issue(first=2 * DAY, last=3 * DAY))
    old, new = NOW - DAY, NOW + 2 * DAY
    assert f"(valid from {new:%Y-%m-%dT%H:%M:%SZ} to {NOW + 3 * DAY:%Y-%m-%d}" in caplog.text
    assert f"(valid from {old:%Y-%m-%dT%H:%M:%SZ} to {NOW + 90 * DAY:%Y-%m-%d}" in caplog.text


def test_a_certificate_is_used_once_it_is_valid(authority: Authority, listener: Listener) -> None:
    assert not listener.replace(authority.issue(first=2 * DAY))
    listener.now += (2 * DAY).total_seconds() + 1
    listener.tls.check()
    assert len(listener.contexts) == 2
    assert listener.faults() == []


def test_a_certificate_of_the_root_needs_no_chain(authority: Authority, listener: Listener) -> None:
    assert listener.replace(authority.issue(issuer="root", with_chain=False))


def test_what_has_expired_is_replaced_by_anything(authority: Authority, listener: Listener) -> None:
    listener.now += (100 * DAY).total_seconds()
    assert listener.faults() == [(faults.EXPIRED, True)]
    assert listener.replace(authority.issue(first=200 * DAY, last=300 * DAY))
    assert listener.faults() == [(faults.NOT_YET_VALID, True)]


def test_the_fault_at_the_start_names_a_certificate_that_is_not_valid_yet(
    authority: Authority, tmp_path: Path
) -> None:
    listener = Listener(tmp_path / "keys.pem", authority, authority.issue(first=2 * DAY))
    assert listener.faults() == [(faults.NOT_YET_VALID, True)]


def test_a_change_at_run_time_is_refused(
    authority: Authority, listener: Listener, tmp_path: Path
) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    other = tmp_path / "other.pem"
    other.write_bytes(authority.issue(first=2 * DAY))
    changed = listener.config.with_dynamic(broker={name: str(other)})
    with pytest.raises(ConfigError, match="is not valid before"):
        listener.tls.validate(changed, [name])
    shutil.copy(listener.path, other)
    listener.tls.validate(changed, [name])


def test_time_is_that_of_the_machine(authority: Authority, listener: Listener) -> None:
    assert abs(ListenerTls(listener.config)._now() - time.time()) < 60
