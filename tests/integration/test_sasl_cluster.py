"""A cluster in which all authenticate by SCRAM: Apache Kafka and us."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.apache_kafka import ApacheKafka, run_tool, start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.producing import numbered, produce
from tests.doubles.sasl_talk import BEARER_LOGIN, PLAIN_LOGIN, SCRAM_LOGIN

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

PASSWORD = "br0ker-x"
MECHANISM = "SCRAM-SHA-512"
SETTINGS: dict[str, object] = {
    "listeners": "INSIDE://127.0.0.1:0",
    "listener_security_protocol_map": "INSIDE:SASL_PLAINTEXT",
    "inter_broker_listener_name": "INSIDE",
    "sasl_enabled_mechanisms": MECHANISM,
    "sasl_mechanism_inter_broker_protocol": MECHANISM,
    "listener_name_inside_scram-sha-512_sasl_jaas_config": (
        f'{SCRAM_LOGIN} username="broker" password="{PASSWORD}";'
    ),
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "super_users": "User:broker",
    "zookeeper_session_timeout_ms": 6000,
    "inter_broker_protocol_version": "3.9",
    "min_insync_replicas": 1,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
    "connections_max_reauth_ms": 5_000,
}
TOPIC = "guarded"
RECORDS = 200


def client(bootstrap: str, **more: object) -> dict[str, object]:
    login = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": "broker",
        "sasl.password": PASSWORD,
    }
    return login | {name.replace("_", "."): value for name, value in more.items()}


def write(bootstrap: str, first: int) -> None:
    settings = client(bootstrap, acks="all", message_timeout_ms=60_000)
    produce(bootstrap, TOPIC, numbered(first, RECORDS), seconds=90, **settings)


def consume(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer(client(bootstrap, group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe([TOPIC])
    found: list[int] = []
    try:
        eventually(lambda: take(consumer, found) >= count, "records are missing")
    finally:
        consumer.close()
    return sorted(found)


def take(consumer: Consumer, found: list[int]) -> int:
    for message in consumer.consume(500, timeout=1):
        assert message.error() is None, message.error()
        found.append(int(message.value() or b""))
    return len(found)


def in_sync(bootstrap: str) -> dict[int, set[int]]:
    """In-sync replicas by partition."""
    try:
        metadata = AdminClient(client(bootstrap)).list_topics(TOPIC, timeout=20)
    except KafkaException:
        return {}
    return {number: set(each.isrs) for number, each in metadata.topics[TOPIC].partitions.items()}


def all_in_sync(bootstrap: str) -> bool:
    return in_sync(bootstrap) == {0: {1, 2}, 1: {1, 2}}


JAAS_FILE = f"""
KafkaServer {{
    {SCRAM_LOGIN} username="user" password="wrong";
    {PLAIN_LOGIN} username="broker" password="{PASSWORD}";
}};
"""
OF_JAAS_FILE = {name: value for name, value in SETTINGS.items() if "jaas" not in name}


def test_a_mixed_cluster(tmp_path: Path) -> None:
    """Kafka has its login in a setting first, then in a JAAS file, as Ottla has.

    The section has two passwords: Kafka takes the first of a hash set, whatever the mechanism.
    """
    jaas_file = tmp_path / "kafka.jaas"
    jaas_file.write_text(JAAS_FILE)
    option = f"-Djava.security.auth.login.config={jaas_file}"
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(tmp_path / "zookeeper"))
        make_user = ("--alter", "--entity-type", "users", "--entity-name", "broker")
        run_tool(
            "kafka.admin.ConfigCommand",
            *("--zookeeper", zookeeper, *make_user),
            *("--add-config", f"{MECHANISM}=[iterations=4096,password={PASSWORD}]"),
        )
        with_kafka = stack.enter_context(ExitStack())
        kafka = with_kafka.enter_context(kafka_broker(tmp_path, zookeeper, [], SETTINGS))
        ours = stack.enter_context(
            start_broker(
                tmp_path / "ours",
                broker_id=2,
                zookeeper_connect=zookeeper,
                kafka_opts=option,
                **OF_JAAS_FILE,
            )
        )
        both = f"{kafka.bootstrap},{ours.bootstrap}"
        admin = AdminClient(client(both))
        eventually(
            lambda: set(admin.list_topics(timeout=20).brokers) == {1, 2}, "they know each other not"
        )
        admin.create_topics([NewTopic(TOPIC, 2, 2)])[TOPIC].result(60)
        write(both, 0)
        eventually(lambda: all_in_sync(both), "not all are in sync")
        with_kafka.close()
        eventually(lambda: in_sync(ours.bootstrap) == {0: {2}, 1: {2}}, "the other is not missed")
        write(ours.bootstrap, RECORDS)
        again = stack.enter_context(kafka_broker(tmp_path, zookeeper, [option], OF_JAAS_FILE))
        eventually(lambda: all_in_sync(ours.bootstrap), "Kafka is not back in sync")
        write(f"{again.bootstrap},{ours.bootstrap}", 2 * RECORDS)
        assert consume(again.bootstrap, 3 * RECORDS) == list(range(3 * RECORDS))
        assert_no_secret(ours)
        assert "Failed authentication" not in again.output()


def kafka_broker(
    directory: Path, zookeeper: str, options: list[str], settings: dict[str, object]
) -> AbstractContextManager[ApacheKafka]:
    return start_kafka(
        directory / "kafka", zookeeper=zookeeper, jvm_options=options, broker_id=1, **settings
    )


def assert_no_secret(broker: BrokerProcess) -> None:
    assert PASSWORD not in broker.log()
    assert "failed to authenticate" not in broker.log()


BEARER = "listener_name_inside_oauthbearer_sasl_jaas_config"
BEARER_SETTINGS: dict[str, object] = {
    **{name: value for name, value in SETTINGS.items() if "scram" not in name},
    "sasl_enabled_mechanisms": "OAUTHBEARER",
    "sasl_mechanism_inter_broker_protocol": "OAUTHBEARER",
    BEARER: f'{BEARER_LOGIN} unsecuredLoginStringClaim_sub="broker";',
}


def bearer_client(bootstrap: str) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=broker",
    }


def test_bearer_tokens_between_brokers(tmp_path: Path) -> None:
    """Apache Kafka follows Ottla and Ottla follows Apache Kafka."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(tmp_path / "zookeeper"))
        kafka = stack.enter_context(
            start_kafka(tmp_path / "kafka", zookeeper=zookeeper, broker_id=1, **BEARER_SETTINGS)
        )
        ours = stack.enter_context(
            start_broker(
                tmp_path / "ours", broker_id=2, zookeeper_connect=zookeeper, **BEARER_SETTINGS
            )
        )
        both = bearer_client(f"{kafka.bootstrap},{ours.bootstrap}")
        admin = AdminClient(both)
        eventually(
            lambda: set(admin.list_topics(timeout=20).brokers) == {1, 2}, "they know each other not"
        )
        admin.create_topics([NewTopic(TOPIC, 2, 2)])[TOPIC].result(60)
        producer = Producer({**both, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number), partition=number % 2)
        assert producer.flush(60) == 0

        def replicas_in_sync() -> set[tuple[int, ...]]:
            partitions = admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions
            return {tuple(sorted(each.isrs)) for each in partitions.values()}

        eventually(lambda: replicas_in_sync() == {(1, 2)}, "not all are in sync")
        assert "failed to authenticate" not in ours.log()
        assert "Failed authentication" not in kafka.output()
