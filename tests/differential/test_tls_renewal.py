"""Keys and trust of the listener of brokers at run time, in a cluster with Apache Kafka.

Both check that brokers with the old and with the new stores can connect to each other.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import SCRAM_LOGIN, addresses
from tests.doubles.wire import Wire

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

BROKER = 4
PREFIX = "listener.name.brokers.ssl."
KEYS, TRUST = f"{PREFIX}keystore.location", f"{PREFIX}truststore.location"


class Stores(NamedTuple):
    """Files in PEM: two authorities, both in one file, and keys that each of them signed."""

    trust_old: Path
    trust_new: Path
    trust_both: Path
    keys_old: Path
    keys_new: Path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    old = Certificates(tmp_path_factory.mktemp("old"))
    new = Certificates(tmp_path_factory.mktemp("new"), "another authority")
    both = old.folder / "both.pem"
    both.write_bytes(old.authority_path.read_bytes() + new.authority_path.read_bytes())
    return Stores(old.authority_path, new.authority_path, both, old.server_path, new.server_path)


class Cluster(NamedTuple):
    """Addresses of Kafka (broker 1) and Ottla (broker 2): plain, of brokers, with SASL."""

    kafka: list[str]
    ottla: list[str]

    def alter(self, name: str, value: Path) -> list[int]:
        """The error codes of both for a new value of a setting."""
        return [
            alter(of[0], broker_id, name, str(value))
            for broker_id, of in ((1, self.kafka), (2, self.ottla))
        ]

    def presented(self) -> list[bytes]:
        """The certificates of the listeners of brokers."""
        return [_certificate(of[1]) for of in (self.kafka, self.ottla)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, stores: Stores) -> Iterator[Cluster]:
    settings: dict[str, object] = {
        "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0,GUARDED://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,BROKERS:SSL,GUARDED:SASL_SSL",
        "inter_broker_listener_name": "BROKERS",
        "sasl_enabled_mechanisms": "SCRAM-SHA-512",
        "listener_name_guarded_scram-sha-512_sasl_jaas_config": f"{SCRAM_LOGIN};",
        "ssl_client_auth": "required",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": stores.keys_old,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": stores.trust_old,
        "zookeeper_session_timeout_ms": 60_000,
    }
    with (
        start_zookeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper,
        start_kafka(
            tmp_path_factory.mktemp("kafka"), zookeeper=zookeeper, broker_id=1, **settings
        ) as kafka,
        start_broker(
            tmp_path_factory.mktemp("ottla"), broker_id=2, zookeeper_connect=zookeeper, **settings
        ) as ottla,
    ):
        yield Cluster(addresses(kafka), addresses(ottla))


def alter(bootstrap: str, broker_id: int, name: str, value: str) -> int:
    """The error code of a new value of a broker's setting."""
    change = AlterableConfig(name, 0, value)
    resource = AlterConfigsResource(BROKER, str(broker_id), [change])
    with Wire(bootstrap) as wire:
        response = wire.ask(IncrementalAlterConfigsRequest([resource], False), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    return response.responses[0].error_code


def _leaf(path: Path) -> bytes:
    pem = path.read_text()
    return ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") :])


def _certificate(address: str) -> bytes:
    """Of a listener; the client has none, and is rejected after that."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return presented(address, context)


def presented(address: str, context: ssl.SSLContext) -> bytes:
    """The certificate that a listener presents, in DER. Raises OSError."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 60) as opened,
        context.wrap_socket(opened) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_change_of_authority_in_steps(cluster: Cluster, stores: Stores) -> None:
    assert cluster.presented() == [_leaf(stores.keys_old)] * 2
    refused = cluster.alter(KEYS, stores.keys_new)
    assert refused[0] != 0
    assert refused[0] == refused[1]
    assert cluster.alter(TRUST, stores.trust_new) == refused
    assert cluster.alter(TRUST, stores.trust_both) == [0, 0]
    assert cluster.alter(TRUST, stores.trust_new) == refused
    # A broker takes a change of the trust from ZooKeeper a moment after its response.
    eventually(lambda: cluster.alter(KEYS, stores.keys_new) == [0, 0], "the keys are rejected")
    renewed = [_leaf(stores.keys_new)] * 2
    eventually(lambda: cluster.presented() == renewed, "the new keys are not used")
    assert cluster.alter(TRUST, stores.trust_old) == refused
    assert cluster.alter(TRUST, stores.trust_new) == [0, 0]


def test_certificates_of_clients_on_a_listener_with_sasl(cluster: Cluster) -> None:
    """ssl.client.auth without the listener's prefix does not count there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for of in (cluster.kafka, cluster.ottla):
        host, _, port = of[2].rpartition(":")
        with (
            socket.create_connection((host, int(port)), 60) as opened,
            context.wrap_socket(opened) as secured,
        ):
            # ApiVersions, version 0, correlation id 7, no client id.
            secured.sendall(bytes.fromhex("0000000a0012000000000007ffff"))
            assert secured.recv(8)[4:] == b"\0\0\0\7"
