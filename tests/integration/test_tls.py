"""Listeners with TLS, with a real client."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.broker.config.broker_config import ConfigError
from ottla.broker.testing.embedded import Broker
from tests.doubles.acknowledged_records import AcknowledgedRecords, identical_logs
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually
from tests.doubles.producing import Outgoing, produce

SECONDS = 20.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def broker(certificates: Certificates) -> Iterator[Broker]:
    """Asks clients for certificates; other brokers would have to show one too."""
    with Broker(
        listeners="SSL://127.0.0.1:0",
        security_inter_broker_protocol="SSL",
        ssl_keystore_type="PEM",
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_type="PEM",
        ssl_truststore_location=certificates.authority_path,
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=(.*?)$/$1/U",
    ) as running:
        yield running


def with_certificate(certificates: Certificates) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.authority_path),
        "ssl.certificate.location": str(certificates.client_path),
        "ssl.key.location": str(certificates.client_path),
    }


def test_produce_and_consume(broker: Broker, certificates: Certificates) -> None:
    common = {"bootstrap.servers": broker.bootstrap, **with_certificate(certificates)}
    producer = Producer(common)
    values = [str(number).encode() * 1000 for number in range(300)]
    for value in values:
        producer.produce("t", value)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    assert [message.value() for message in consumer.consume(300, SECONDS)] == values
    consumer.close()


def test_the_user_comes_from_the_certificate(broker: Broker, certificates: Certificates) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **with_certificate(certificates)})
    admin.list_topics(timeout=SECONDS)
    # The client may be opening another connection, which has no owner until its handshake is done.
    network = broker.server.parts.network_server
    eventually(
        lambda: {str(each.principal) for each in network.connections} == {"User:CLIENT"},
        seconds=SECONDS,
    )


def test_without_a_certificate_there_is_no_way_in(
    broker: Broker, certificates: Certificates
) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificates.authority_path),
            "log_level": 0,
        }
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)


def test_a_start_without_keys_names_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location"):
        Broker(listeners="SSL://127.0.0.1:0", security_inter_broker_protocol="SSL").start()


def test_plain_and_encrypted_side_by_side(certificates: Certificates, tmp_path: Path) -> None:
    with Broker(
        tmp_path,
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=certificates.server_path,
    ) as broker:
        produce(broker.bootstrap, "t", [Outgoing(b"1")], seconds=SECONDS)
        port = broker.server.ports["SSL"]
        encrypted = AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SSL",
                "ssl.ca.location": str(certificates.authority_path),
            }
        )
        found = encrypted.list_topics(timeout=SECONDS)
        assert "t" in found.topics
        # Each listener sends its clients back to itself.
        assert {each.port for each in found.brokers.values()} == {port}
        assert ssl.get_server_certificate(("127.0.0.1", port))


@pytest.mark.zookeeper
def test_brokers_replicate_over_tls(certificates: Certificates, tmp_path: Path) -> None:
    with start_cluster(
        tmp_path,
        3,
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        inter_broker_listener_name="SSL",
        min_insync_replicas=2,
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_location=certificates.authority_path,
        ssl_client_auth="required",
    ) as cluster:
        records = AcknowledgedRecords(cluster.bootstrap)
        records.create_topic()
        records.produce(1000)
        records.assert_nothing_lost_or_doubled()
        directories = [each.data_directory for each in cluster.brokers.values()]
        eventually(lambda: identical_logs(directories), "the replicas differ")
