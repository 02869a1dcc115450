"""Key stores at the start, beside Apache Kafka: certificates that no client accepts, several keys
in a store, old encryption, sessions after a change of trust, host names between brokers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.differential.test_tls_renewal import alter, presented
from tests.doubles.apache_kafka import kafka_library, start_kafka, start_zookeeper
from tests.doubles.broker_process import start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import addresses
from tests.golden.identity.regenerate import ask
from tests.unit.broker.security.tls.test_certificate_renewal import DAY, NOW, Authority

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

UNUSABLE = {
    "expired": {"first": -9 * DAY, "last": -DAY},
    "early": {"first": 2 * DAY},
    "otherkey": {"with_other_key": True},
    "nochain": {"with_chain": False},
}
STORES = {"jks": ("JKS", False), "pkcs12": ("PKCS12", False), "legacy": ("PKCS12", True)}
SESSIONS = "sessions"
NAMES = [*UNUSABLE, *STORES, SESSIONS]
PASSWORD = "storepass"


class Both(NamedTuple):
    """The listeners of Kafka and ours, by name, after the plain one."""

    kafka: dict[str, str]
    ottla: dict[str, str]
    plain: tuple[str, str]
    log: Path
    old: Certificates
    new: Certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def unusable(folder: Path) -> dict[str, Path]:
    """Key stores in PEM, and the root that signed all of them as "trust"."""
    authority = Authority(folder)
    found = {name: folder / f"{name}.pem" for name in ("trust", *UNUSABLE)}
    found["trust"].write_bytes(authority.root.public_bytes(serialization.Encoding.PEM))
    for name, how in UNUSABLE.items():
        found[name].write_bytes(authority.issue(**how))  # type: ignore[arg-type]
    return found


def several_keys() -> list[list[str]]:
    """(alias, key, certificate): two of each kind, which Java does not list in this order."""
    found = []
    for alias in ("zeta", "rsa-2", "alpha", "ec-2"):
        key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = (
            rsa.generate_private_key(65537, 2048)
            if alias in ("zeta", "rsa-2")
            else ec.generate_private_key(ec.SECP256R1())
        )
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, alias)])
        made = x509.CertificateBuilder(
            name, name, key.public_key(), 9, NOW - DAY, NOW + timedelta(days=30)
        ).sign(key, hashes.SHA256())
        der = serialization.Encoding.DER
        private = key.private_bytes(
            der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        found.append([alias, private.hex(), made.public_bytes(der).hex()])
    return found


@pytest.fixture(scope="module")
def stores(folder: Path) -> dict[str, Path]:
    keys = several_keys()
    asked = [{"store": kind, "legacy": legacy, "keys": keys} for kind, legacy in STORES.values()]
    _, answers = ask(kafka_library(), asked)
    found = {}
    for name, answer in zip(STORES, answers, strict=True):
        found[name] = folder / name
        found[name].write_bytes(bytes.fromhex(answer["found"].partition("|")[0]))
    return found


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
    unusable: dict[str, Path],
    stores: dict[str, Path],
) -> Iterator[Both]:
    old = Certificates(tmp_path_factory.mktemp("old"))
    new = Certificates(tmp_path_factory.mktemp("new"), "another authority")
    listeners = {name.upper(): f"{name.upper()}://127.0.0.1:0" for name in NAMES}
    settings: dict[str, object] = {
        "listeners": ",".join(["PLAINTEXT://127.0.0.1:0", *listeners.values()]),
        "listener_security_protocol_map": ",".join(
            ["PLAINTEXT:PLAINTEXT", *(f"{name}:SSL" for name in listeners)]
        ),
        "inter_broker_listener_name": "PLAINTEXT",
    }
    for name in (*UNUSABLE, SESSIONS):
        settings[f"listener_name_{name}_ssl_keystore_type"] = "PEM"
        path = unusable.get(name, old.server_path)
        settings[f"listener_name_{name}_ssl_keystore_location"] = path
        settings[f"listener_name_{name}_ssl_truststore_type"] = "PEM"
        trust = unusable["trust"] if name in UNUSABLE else old.authority_path
        settings[f"listener_name_{name}_ssl_truststore_location"] = trust
    settings[f"listener_name_{SESSIONS}_ssl_client_auth"] = "required"
    for name, (kind, _) in STORES.items():
        settings[f"listener_name_{name}_ssl_keystore_type"] = kind
        settings[f"listener_name_{name}_ssl_keystore_location"] = stores[name]
        settings[f"listener_name_{name}_ssl_keystore_password"] = PASSWORD
        settings[f"listener_name_{name}_ssl_key_password"] = PASSWORD
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), **settings) as kafka,
        start_broker(tmp_path_factory.mktemp("ottla"), broker_id=0, **settings) as ottla,
    ):
        (plain, *one), (our_plain, *ours) = addresses(kafka), addresses(ottla)
        yield Both(
            dict(zip(NAMES, one, strict=True)),
            dict(zip(NAMES, ours, strict=True)),
            (plain, our_plain),
            ottla.log_file,
            old,
            new,
        )


def client(newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, ciphers: str = "") -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.maximum_version = newest
    if ciphers:
        made.set_ciphers(ciphers)
    return made


@pytest.mark.parametrize("name", ["expired", "early", "nochain"])
def test_a_broker_starts_with_a_certificate_that_clients_reject(both: Both, name: str) -> None:
    for address in (both.kafka[name], both.ottla[name]):
        assert presented(address, client())


def test_a_broker_starts_with_a_key_of_another_certificate(both: Both) -> None:
    for address in (both.kafka["otherkey"], both.ottla["otherkey"]):
        with pytest.raises(ssl.SSLError):
            presented(address, client())


def test_the_faults_name_them_with_both_dates(both: Both) -> None:
    lines = both.log.read_text().splitlines()
    for words in (
        "the certificate of listener EXPIRED expired 24 hours ago",
        "the certificate of listener EARLY is not valid yet, but in 47 hours",
        "no client can connect to listener OTHERKEY",
        "clients may reject the certificate of listener NOCHAIN",
    ):
        (line,) = (each for each in lines if words in each)
        assert line.count("T") >= 2, line
        assert " to 20" in line, line


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(
    ("newest", "ciphers", "kind"),
    [
        (ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-GCM-SHA256", "rsa"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256", "ec"),
        (ssl.TLSVersion.TLSv1_3, "", "ec"),
    ],
)
def test_the_kinds_that_a_client_accepts_decide_on_the_key(
    both: Both, name: str, newest: ssl.TLSVersion, ciphers: str, kind: str
) -> None:
    one, other = (
        presented(address[name], client(newest, ciphers)) for address in (both.kafka, both.ottla)
    )
    assert one == other
    public = x509.load_der_x509_certificate(one).public_key()
    assert isinstance(public, rsa.RSAPublicKey) == (kind == "rsa")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_a_client_that_is_not_trusted_any_more(
    both: Both, newest: ssl.TLSVersion
) -> None:
    """Nor is it resumed with a certificate of an authority that is not trusted yet."""
    setting = f"listener.name.{SESSIONS}.ssl.truststore.location"
    listeners = (both.kafka[SESSIONS], both.ottla[SESSIONS])
    for plain in both.plain:
        assert alter(plain, 0, setting, str(both.old.authority_path)) == 0
    made = client(newest)
    made.load_cert_chain(both.old.client_path)
    sessions = []
    for address in listeners:
        eventually(lambda address=address: responds(address, made) is not None, "it is not trusted")
        sessions.append(responds(address, made))
    for plain in both.plain:
        assert alter(plain, 0, setting, str(both.new.authority_path)) == 0
    for address, session in zip(listeners, sessions, strict=True):
        eventually(lambda address=address: responds(address, made) is None, "it is still trusted")
        assert responds(address, made, session) is None


def responds(
    address: str, made: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """The session of a connection on which a request has a response; None without one."""
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), 60) as opened,
            made.wrap_socket(opened, session=session) as secured,
        ):
            # ApiVersions, version 0, correlation id 7, no client id.
            secured.sendall(bytes.fromhex("0000000a0012000000000007ffff"))
            return secured.session if secured.recv(8)[4:] == b"\0\0\0\7" else None
    except OSError:
        return None


@pytest.mark.parametrize("name", UNUSABLE)
def test_the_listener_of_brokers_stops_the_start(
    tmp_path: Path, unusable: dict[str, Path], name: str
) -> None:
    settings: dict[str, object] = {
        "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,BROKERS:SSL",
        "inter_broker_listener_name": "BROKERS",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": unusable[name],
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": unusable["trust"],
    }
    with start_zookeeper(tmp_path) as zookeeper:
        with (
            pytest.raises(AssertionError, match="the process ended early"),
            start_kafka(tmp_path / "kafka", zookeeper=f"{zookeeper}/kafka", **settings),
        ):
            pass
        with (
            pytest.raises(AssertionError, match="the broker ended with"),
            start_broker(tmp_path / "ottla", zookeeper_connect=f"{zookeeper}/ottla", **settings),
        ):
            pass


class Pair(NamedTuple):
    trust: Path
    good: Path
    wrong: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    made = Certificates(tmp_path_factory.mktemp("pair"))
    wrong = made.issue("server", "wrong", addresses=("127.0.0.2",))
    return Pair(made.authority_path, made.server_path, wrong)


@pytest.mark.parametrize("controller", ["kafka", "ottla"])
def test_the_controller_checks_the_host_names_of_brokers(
    tmp_path: Path, pair: Pair, controller: str
) -> None:
    settings: dict[str, object] = {
        "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,BROKERS:SSL",
        "inter_broker_listener_name": "BROKERS",
        "ssl_client_auth": "required",
        "ssl_keystore_type": "PEM",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": pair.trust,
    }
    good, wrong = {"ssl_keystore_location": pair.good}, {"ssl_keystore_location": pair.wrong}
    with start_zookeeper(tmp_path) as zookeeper:
        if controller == "kafka":
            with (
                start_kafka(
                    tmp_path / "kafka", zookeeper=zookeeper, broker_id=1, **settings, **good
                ) as kafka,
                start_broker(
                    tmp_path / "ottla",
                    zookeeper_connect=zookeeper,
                    broker_id=2,
                    **settings,
                    **wrong,
                ),
            ):
                kafka.process.wait_for("No subject alternative names matching IP address 127.0.0.1")
            return
        with (
            start_broker(
                tmp_path / "ottla", zookeeper_connect=zookeeper, broker_id=2, **settings, **good
            ) as ottla,
            start_kafka(tmp_path / "kafka", zookeeper=zookeeper, broker_id=1, **settings, **wrong),
        ):
            ottla.wait_for_log("IP address mismatch, certificate is not valid for '127.0.0.1'")
