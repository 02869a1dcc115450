"""TLS, users and ACLs of an embedded broker, with the clients that get its settings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import (  # type: ignore[import-untyped, unused-ignore]
    KafkaAdminClient,
    KafkaProducer,
)
from kafka.errors import KafkaError  # type: ignore[import-untyped, unused-ignore]

from ottla.testing import Broker, Cluster
from tests.doubles.broker_process import ROOT

RULES = {"alice": ["WRITE topic:orders*", "CREATE topic:orders*", "IDEMPOTENT_WRITE cluster"]}


def outcome(config: dict[str, Any], topic: str = "orders") -> str:
    """ "" for a record that was written, else the error."""
    found: list[Any] = []
    producer = Producer({**config, "message.timeout.ms": 20_000, "log_level": 0})
    producer.produce(topic, b"x", on_delivery=lambda error, _: found.append(error))
    assert producer.flush(30) == 0
    return "" if found[0] is None else str(found[0].name())


MUTUAL = {"tls": True, "ssl_client_auth": "required"}


@pytest.mark.parametrize("arguments", [{}, {"tls": True}, MUTUAL, {"users": {"alice": "secret"}}])
async def test_clients_connect_with_the_settings_that_they_get(arguments: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaProducer

    with Broker(**arguments) as broker:
        assert outcome(broker.client_config("confluent")) == ""
        kafka_python = KafkaProducer(**broker.client_config("kafka-python"))
        assert kafka_python.send("orders", b"x").get(30).offset == 1
        kafka_python.close()
        aiokafka = AIOKafkaProducer(**broker.client_config("aiokafka"))
        await aiokafka.start()
        assert (await aiokafka.send_and_wait("orders", b"x")).offset == 2
        await aiokafka.stop()


def test_users_may_do_what_the_rules_say_also_after_a_restart() -> None:
    users = {"alice": "secret", "bob": "other"}
    with Broker(tls=True, users=users, acls=RULES) as broker:
        for _ in range(2):
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
                assert outcome(broker.client_config(mechanism=mechanism)) == ""  # type: ignore[arg-type]
            assert outcome(broker.client_config(user="bob")) == "TOPIC_AUTHORIZATION_FAILED"
            assert outcome(broker.client_config(), "other") == "TOPIC_AUTHORIZATION_FAILED"
            assert outcome(broker.client_config(user="admin"), "other") == ""
            broker.restart()


def test_brokers_of_a_cluster_trust_each_other() -> None:
    with Cluster(2, tls=True, users={"alice": "secret"}, acls=RULES) as cluster:
        cluster.create_topic("orders", partitions=2)
        assert outcome({**cluster.client_config(), "acks": "all"}) == ""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_the_name_of_a_user_may_be_a_mail_address(mechanism: Any) -> None:
    name = "alice@example.com"
    with Broker(users={name: "secret"}, acls={name: RULES["alice"]}) as broker:
        broker.create_topic("orders")
        assert outcome(broker.client_config(user=name, mechanism=mechanism)) == ""


FIRST_USE = """
import threading

from ottla.broker.testing.certificates import certificate_files
from ottla.testing import Cluster

ready = threading.Barrier(4)
found = set()


def ask():
    ready.wait()
    found.add(certificate_files())


threads = [threading.Thread(target=ask) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert len(found) == 1, found
with Cluster(2, tls=True) as cluster:
    cluster.create_topic("orders")
"""


def test_brokers_that_start_first_and_together_share_an_authority() -> None:
    """In a process of its own: the authority of this one may exist."""
    subprocess.run([sys.executable, "-c", FIRST_USE], cwd=ROOT, check=True, timeout=120)


def test_a_client_without_the_certificate_is_refused() -> None:
    with Broker(tls=True, ssl_client_auth="required") as broker:
        config = broker.client_config("kafka-python")
        KafkaAdminClient(**config).close()
        del config["ssl_certfile"]
        with pytest.raises(KafkaError):
            KafkaAdminClient(**config, bootstrap_timeout_ms=3000)


def test_the_listener_is_chosen_by_one_argument_only() -> None:
    with pytest.raises(ValueError, match="drop the setting listeners"):
        Broker(tls=True, listeners="PLAINTEXT://127.0.0.1:0")


def test_a_setting_with_a_dot_is_left_as_it_is() -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="a" password="b" user_a="b" user_alice="secret";'
    )
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security_inter_broker_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism_inter_broker_protocol": "PLAIN",
        "sasl_enabled_mechanisms": "PLAIN",
    }
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}
    for name in (
        "listener.name.sasl_plaintext.plain.sasl.jaas.config",
        "listener_name_sasl__plaintext_plain_sasl_jaas_config",
    ):
        with Broker(**settings, **{name: jaas}) as broker:  # type: ignore[arg-type]
            client = {"bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT"}
            assert outcome({**client, **login}) == ""
