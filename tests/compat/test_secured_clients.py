"""Real clients on secured listeners: TLS, SASL over TLS, and what an ACL allows and denies.

docs/compatibility.md has the results, from the table in tests/compat/suites/security.py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError as AioDenied
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from ottla.broker.testing.embedded import Broker
from tests.compat.suites.security import SECURED
from tests.doubles.apache_kafka import run_tool
from tests.doubles.certificates import Certificates
from tests.doubles.sasl_talk import PLAIN_LOGIN

SECONDS = 60
OPEN, CLOSED = "open", "closed"
USER, PASSWORD = "anna", "s3cret"


class Address(NamedTuple):
    """A listener, and the authority that signed the broker's certificate."""

    bootstrap: str
    authority: str
    sasl: bool


class Denied(Exception):
    """The broker responded TOPIC_AUTHORIZATION_FAILED."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Address]]:
    """By protocol. On the listeners without SASL everyone is a super user."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    login = f'{PLAIN_LOGIN} user_{USER}="{PASSWORD}";'
    settings: dict[str, object] = {
        "listeners": "INSIDE://127.0.0.1:0,TLS://127.0.0.1:0,LOGIN://127.0.0.1:0",
        "listener_security_protocol_map": "INSIDE:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL",
        "inter_broker_listener_name": "INSIDE",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": certificates.server_path,
        "listener_name_login_sasl_enabled_mechanisms": "PLAIN",
        "listener_name_login_plain_sasl_jaas_config": login,
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    with Broker(**settings) as broker:
        for topic in (OPEN, CLOSED):
            broker.create_topic(topic)
        allow(broker.bootstrap)
        authority = str(certificates.authority_path)
        ports = broker.server.ports
        yield {
            "SSL": Address(f"127.0.0.1:{ports['TLS']}", authority, sasl=False),
            "SASL_SSL": Address(f"127.0.0.1:{ports['LOGIN']}", authority, sasl=True),
        }


def allow(bootstrap: str) -> None:
    """What the user may do: write to and read the open topic."""
    kinds = ((ResourceType.TOPIC, OPEN), (ResourceType.GROUP, "readers"))
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for kind, name in kinds
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_acls(bindings).values():
        future.result(SECONDS)


def confluent_kafka(address: Address, topic: str, value: bytes) -> bytes | None:
    common: dict[str, object] = {
        "bootstrap.servers": address.bootstrap,
        "security.protocol": "SASL_SSL" if address.sasl else "SSL",
        "ssl.ca.location": address.authority,
    }
    if address.sasl:
        login = {"sasl.username": USER, "sasl.password": PASSWORD}
        common |= {"sasl.mechanism": "PLAIN", **login}
    failed: list[KafkaException] = []
    producer = Producer(common)
    producer.produce(
        topic, value, on_delivery=lambda error, _: error and failed.append(KafkaException(error))
    )
    assert producer.flush(SECONDS) == 0
    if failed:
        assert failed[0].args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
        raise Denied
    consumer = Consumer({**common, "group.id": "readers"})
    try:
        last = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)[1] - 1
        consumer.assign([TopicPartition(topic, 0, last)])
        message = consumer.poll(SECONDS)
        return None if message is None else message.value()
    finally:
        consumer.close()


def python_options(address: Address) -> dict[str, object]:
    options: dict[str, object] = {
        "bootstrap_servers": address.bootstrap,
        "security_protocol": "SASL_SSL" if address.sasl else "SSL",
        "ssl_context": ssl.create_default_context(cafile=address.authority),
    }
    if address.sasl:
        options["sasl_mechanism"] = "PLAIN"
        options |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return options


def kafka_python(address: Address, topic: str, value: bytes) -> bytes | None:
    producer = KafkaProducer(**python_options(address))
    try:
        stored = producer.send(topic, value).get(SECONDS)
    except TopicAuthorizationFailedError:
        raise Denied from None
    finally:
        producer.close()
    consumer = KafkaConsumer(consumer_timeout_ms=SECONDS * 1000, **python_options(address))
    try:
        from kafka import TopicPartition as Partition

        consumer.assign([Partition(topic, 0)])
        consumer.seek(Partition(topic, 0), stored.offset)
        read: bytes = next(iter(consumer)).value
        return read
    finally:
        consumer.close()


def aiokafka(address: Address, topic: str, value: bytes) -> bytes | None:
    async def run() -> bytes:
        from aiokafka import TopicPartition as Partition

        async with AIOKafkaProducer(**python_options(address)) as producer:
            stored = await producer.send_and_wait(topic, value)
        consumer = AIOKafkaConsumer(**python_options(address))
        async with consumer, asyncio.timeout(SECONDS):
            consumer.assign([Partition(topic, 0)])
            consumer.seek(Partition(topic, 0), stored.offset)
            read: bytes = (await consumer.getone()).value
            return read

    try:
        return asyncio.run(run())
    except AioDenied:
        raise Denied from None


CLIENTS: dict[str, Callable[[Address, str, bytes], bytes | None]] = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_record_and_back(secured: dict[str, Address], protocol: str, client: str) -> None:
    value = f"{client} {protocol}".encode()
    assert CLIENTS[client](secured[protocol], OPEN, value) == value


@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_that_no_acl_allows(secured: dict[str, Address], client: str) -> None:
    with pytest.raises(Denied):
        CLIENTS[client](secured["SASL_SSL"], CLOSED, b"v")


@pytest.mark.kafka
def test_the_java_client(secured: dict[str, Address], tmp_path: Path) -> None:
    address = secured["SASL_SSL"]
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_LOGIN} username="{USER}" password="{PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={address.authority}\n"
    )
    common = ("--bootstrap-server", address.bootstrap, "--topic")
    run_tool(
        "kafka.tools.ConsoleProducer",
        *(*common, OPEN, "--producer.config", str(path)),
        text_input="by java\n",
    )
    refused = run_tool(
        "kafka.tools.ConsoleProducer",
        *(*common, CLOSED, "--producer.config", str(path)),
        text_input="by java\n",
    )
    assert "TOPIC_AUTHORIZATION_FAILED" in refused or "TopicAuthorizationException" in refused


def test_the_table_of_the_page() -> None:
    """A client that runs here is in the table, and the others have a test that names them."""
    for feature in ("tls", "sasl-plain", "acls"):
        assert set(SECURED[feature].clients) == {*CLIENTS, "Java client 3.9"}
        assert SECURED[feature].test == "tests/compat/test_secured_clients.py"
