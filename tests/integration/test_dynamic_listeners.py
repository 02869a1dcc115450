"""Listeners and advertised addresses that change while a broker runs, and secrets set with them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
)

from ottla.broker.testing.embedded import Broker
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import SaslTalk

SECONDS = 60.0
PLAIN = "PLAINTEXT://127.0.0.1:0"
MAP = "PLAINTEXT:PLAINTEXT,OUTER:PLAINTEXT,SAFE:SSL,LOGIN:SASL_PLAINTEXT"
SETTINGS = {
    "broker_id": "1",
    "listeners": PLAIN,
    "listener_security_protocol_map": MAP,
    "password_encoder_secret": "a secret",
    "password_encoder_iterations": "1024",
}


def change(broker: Broker, changes: Mapping[str, str | None]) -> None:
    """Sets settings of the broker through its first listener; None deletes one."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for name, value in changes.items()
    ]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def refusal(broker: Broker, changes: Mapping[str, str]) -> str:
    with pytest.raises(KafkaException) as refused:
        change(broker, changes)
    error = refused.value.args[0]
    assert error.code() == KafkaError.INVALID_REQUEST
    return str(error.str())


def port_of(broker: Broker, listener: str) -> int:
    eventually(lambda: listener in broker.server.ports, seconds=SECONDS)
    return broker.server.ports[listener]


def metadata(port: int, **more: str) -> ClusterMetadata:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", **more}).list_topics(
        timeout=SECONDS
    )


def address(port: int, **more: str) -> tuple[str, int] | None:
    """The address of the broker that a client of a listener gets."""
    found = metadata(port, **more).brokers.get(1)
    return None if found is None else (found.host, found.port)


def test_a_listener_is_added_and_removed(tmp_path: Path) -> None:
    with Broker(tmp_path, **SETTINGS) as broker:
        first = broker.server.ports["PLAINTEXT"]
        change(
            broker,
            {
                "listeners": f"{PLAIN},OUTER://127.0.0.1:0",
                "listener.name.outer.max.connections": "20",
            },
        )
        outer = port_of(broker, "OUTER")
        # The controller reads it in the znode tree and sends it to all brokers.
        eventually(lambda: address(outer) == ("127.0.0.1", outer), seconds=SECONDS)
        assert address(first) == ("127.0.0.1", first)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{outer}"})
        producer.produce("t", b"1")
        assert producer.flush(SECONDS) == 0
        limits = broker.server.parts.quotas.listeners
        assert limits["OUTER"].max_connections == 20
        assert (limits["PLAINTEXT"].protected, limits["OUTER"].protected) == (True, False)

        with socket.create_connection(("127.0.0.1", outer), SECONDS) as connection:
            change(broker, {"listeners": None, "listener.name.outer.max.connections": None})
            assert connection.recv(1) == b"", "connections of the listener are closed"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", outer), SECONDS)
        eventually(lambda: len(broker.server.parts.network_server.listeners) == 1)
        assert not limits["PLAINTEXT"].protected
        assert address(first) == ("127.0.0.1", first)


def test_an_added_listener_with_tls_and_its_encrypted_password(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    safe = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority_path)}
    changes = {
        "listeners": f"{PLAIN},SAFE://127.0.0.1:0",
        "listener.name.safe.ssl.keystore.type": "PEM",
        "listener.name.safe.ssl.keystore.location": str(certificates.server_path),
        "listener.name.safe.ssl.key.password": "s3cret",
    }
    with Broker(tmp_path, **SETTINGS) as broker:
        without_keys = {"listeners": changes["listeners"]}
        assert "ssl.keystore" in refusal(broker, without_keys)
        change(broker, changes)
        port = port_of(broker, "SAFE")
        eventually(lambda: address(port, **safe) == ("127.0.0.1", port), seconds=SECONDS)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"s3cret" not in file.read_bytes()
    # What the znode tree holds is used at the next start, too.
    with Broker(tmp_path, **SETTINGS) as broker:
        port = broker.server.ports["SAFE"]
        assert address(port, **safe) == ("127.0.0.1", port)
        name = "listener.name.safe.ssl.key.password"
        assert broker.server.config.effective_text(name) == "s3cret"


def test_an_added_listener_with_sasl(tmp_path: Path) -> None:
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="alice-password";'
    )
    changes = {
        "listeners": f"{PLAIN},LOGIN://127.0.0.1:0",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": login,
    }
    settings = [name for name in changes if name != "listeners"]
    with Broker(tmp_path, **SETTINGS) as broker:
        change(broker, changes)
        port = port_of(broker, "LOGIN")
        user = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "alice-password",
        }
        eventually(lambda: address(port, **user) == ("127.0.0.1", port), seconds=SECONDS)
        # New connections of an open listener get other mechanisms.
        for mechanism in ("SCRAM-SHA-256", "PLAIN"):
            change(broker, {"listener.name.login.sasl.enabled.mechanisms": mechanism})
            talk = SaslTalk(f"127.0.0.1:{port}")
            with talk.wire:
                assert talk.handshake("NONE").mechanisms == [mechanism]
        # One change removes it with its settings.
        change(broker, dict.fromkeys(changes))
        eventually(lambda: set(broker.server.ports) == {"PLAINTEXT"}, seconds=SECONDS)
        # Or its settings are deleted first: it keeps its users until it is removed, too.
        change(broker, changes)
        port = port_of(broker, "LOGIN")
        change(broker, dict.fromkeys(settings))
        assert not any(map(broker.server.config.effective_text, settings))
        eventually(lambda: address(port, **user) == ("127.0.0.1", port), seconds=SECONDS)
        change(broker, {"listeners": None})
        eventually(lambda: set(broker.server.ports) == {"PLAINTEXT"}, seconds=SECONDS)


def test_the_advertised_address_changes(tmp_path: Path) -> None:
    with Broker(tmp_path, **SETTINGS) as broker:
        port = broker.server.ports["PLAINTEXT"]
        change(broker, {"advertised.listeners": f"PLAINTEXT://localhost:{port}"})
        eventually(lambda: address(port) == ("localhost", port), seconds=SECONDS)
        change(broker, {"advertised.listeners": None})
        eventually(lambda: address(port) == ("127.0.0.1", port), seconds=SECONDS)


def test_listeners_that_cannot_be_opened_are_rejected(tmp_path: Path) -> None:
    with Broker(tmp_path, **SETTINGS) as broker, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        in_use = refusal(broker, {"listeners": f"{PLAIN},OUTER://127.0.0.1:{port}"})
        assert "another process uses that port" in in_use
        assert "no security protocol" in refusal(broker, {"listeners": f"{PLAIN},NEW://:0"})
        # The settings of a listener may come before it.
        change(broker, {"listener.name.outer.max.connections": "3"})
        change(broker, {"listener.name.outer.max.connections": None})
        without_keytab = refusal(
            broker,
            {
                "listeners": f"{PLAIN},LOGIN://127.0.0.1:0",
                "listener.name.login.sasl.enabled.mechanisms": "GSSAPI",
                "listener.name.login.gssapi.sasl.jaas.config": (
                    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
                    'storeKey=true keyTab="/nothing/there" principal="kafka/localhost@REALM";'
                ),
            },
        )
        assert "gssapi.sasl.jaas.config" in without_keytab  # neither the package nor the file
        assert set(broker.server.ports) == {"PLAINTEXT"}
