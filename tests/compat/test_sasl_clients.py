"""Real clients log in: every mechanism, right and wrong passwords, and Kafka's own tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.doubles.apache_kafka import run_tool
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import (
    PLAIN_LOGIN,
    SCRAM_LOGIN,
    addresses,
    bearer_token,
    sasl_listener,
)

pytestmark = pytest.mark.kafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TOPIC = "t"
BEARER = {"sub": "anna", "exp": 4_000_000_000, "iat": 1_600_000_000, "scope": ["use"]}
DEADLINE_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("sasl"), **sasl_listener()) as started:
        words = ("--alter", "--entity-type", "users", "--entity-name", "anna")
        scram = ",".join(f"{mechanism}=[password=s3cret]" for mechanism in MECHANISMS[1:])
        open_listener = addresses(started)[0]
        run_tool(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", open_listener, *words, "--add-config", scram),
        )
        yield started


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    return addresses(broker)[1]


def librdkafka(address: str, mechanism: str, password: str = "s3cret") -> dict[str, object]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "anna",
        "sasl.password": password,
    }


def confluent(address: str, mechanism: str) -> bytes | None:
    producer = Producer(librdkafka(address, mechanism))
    producer.produce(TOPIC, mechanism)
    assert producer.flush(DEADLINE_S) == 0
    more = {"group.id": f"librdkafka {mechanism}", "auto.offset.reset": "earliest"}
    consumer = Consumer(librdkafka(address, mechanism) | more)
    try:
        consumer.subscribe([TOPIC])
        (message,) = consumer.consume(1, DEADLINE_S)
        return message.value()
    finally:
        consumer.close()


def python_login(address: str, mechanism: str) -> dict[str, object]:
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "anna",
        "sasl_plain_password": "s3cret",
    }


def kafka_python(address: str, mechanism: str) -> bytes | None:
    login = python_login(address, mechanism)
    producer = KafkaProducer(**login)
    producer.send(TOPIC, mechanism.encode()).get(DEADLINE_S)
    producer.close()
    more = {"auto_offset_reset": "earliest", "consumer_timeout_ms": DEADLINE_S * 1000}
    consumer = KafkaConsumer(TOPIC, group_id=f"kafka-python {mechanism}", **more, **login)
    try:
        value: bytes = next(iter(consumer)).value
        return value
    finally:
        consumer.close()


def aiokafka(address: str, mechanism: str) -> bytes | None:
    async def run() -> bytes:
        login = python_login(address, mechanism)
        async with AIOKafkaProducer(**login) as producer:
            await producer.send_and_wait(TOPIC, mechanism.encode())
        group = f"aiokafka {mechanism}"
        consumer = AIOKafkaConsumer(TOPIC, group_id=group, auto_offset_reset="earliest", **login)
        async with consumer, asyncio.timeout(DEADLINE_S):
            value: bytes = (await consumer.getone()).value
            return value

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[str, str], bytes | None]] = {
    "librdkafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_record_and_back(address: str, name: str, mechanism: str) -> None:
    value = CLIENTS[name](address, mechanism)
    assert value is not None
    assert value.decode() in MECHANISMS


class Tokens(AbstractTokenProvider):
    """What the Python clients ask for a token."""

    def token(self) -> str:
        return bearer_token(BEARER)


class AioTokens(AioTokenProvider):
    async def token(self) -> str:
        return bearer_token(BEARER)


def test_bearer_tokens(address: str) -> None:
    login = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (bearer_token(BEARER), float(BEARER["exp"])),
    }
    producer = Producer(login)
    producer.produce(TOPIC, b"PLAIN")
    assert producer.flush(DEADLINE_S) == 0
    python = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
    }
    kafka_producer = KafkaProducer(sasl_oauth_token_provider=Tokens(), **python)
    kafka_producer.send(TOPIC, b"PLAIN").get(DEADLINE_S)
    kafka_producer.close()

    async def run() -> None:
        async with AIOKafkaProducer(sasl_oauth_token_provider=AioTokens(), **python) as sender:
            await sender.send_and_wait(TOPIC, b"PLAIN")

    asyncio.run(run())


def properties(directory: Path, mechanism: str, password: str) -> Path:
    login = PLAIN_LOGIN if mechanism == "PLAIN" else SCRAM_LOGIN
    path = directory / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={login} username="anna" password="{password}";\n'
    )
    return path


def test_the_java_clients(address: str, tmp_path: Path) -> None:
    path = str(properties(tmp_path, "SCRAM-SHA-256", "s3cret"))
    run_tool(
        "kafka.tools.ConsoleProducer",
        *("--bootstrap-server", address, "--topic", "java", "--producer.config", path),
        text_input="by java\n",
    )
    printed = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", address, "--topic", "java", "--consumer.config", path),
        *("--from-beginning", "--max-messages", "1", "--timeout-ms", "60000"),
    )
    assert "by java" in printed


def test_wrong_passwords(broker: BrokerProcess, address: str, tmp_path: Path) -> None:
    errors: list[KafkaError] = []
    wrong = librdkafka(address, "SCRAM-SHA-256", "hunter2") | {"error_cb": errors.append}
    admin = AdminClient(wrong)

    def has_error() -> bool:
        admin.poll(1)
        return bool(errors)

    eventually(has_error, "the client has no error", pause_seconds=0)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    path = str(properties(tmp_path, "SCRAM-SHA-512", "hunter2"))
    with pytest.raises(AssertionError, match="invalid credentials with SASL mechanism SCRAM-SHA-"):
        run_tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", address, "--command-config", path, "--list"),
        )
    broker.wait_for_log("wrong password for 'anna'")
    assert "hunter2" not in broker.log()
    assert "s3cret" not in broker.log()


def test_credentials_by_kafkas_tool(broker: BrokerProcess) -> None:
    def tool(*words: str) -> str:
        user = ("--entity-type", "users", "--entity-name", "bert")
        open_listener = addresses(broker)[0]
        return run_tool(
            "kafka.admin.ConfigCommand", "--bootstrap-server", open_listener, *user, *words
        )

    tool("--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=x]")
    assert "SCRAM-SHA-256=iterations=8192" in tool("--describe")
    tool("--alter", "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM" not in tool("--describe")


def test_delegation_tokens_by_kafkas_tool(tmp_path: Path) -> None:
    settings = sasl_listener() | {"delegation_token_secret_key": "secret"}
    with start_broker(tmp_path, **settings) as started:
        path = str(properties(tmp_path, "PLAIN", "s3cret"))
        words = ("--bootstrap-server", addresses(started)[1], "--command-config", path)
        tool = "org.apache.kafka.tools.DelegationTokenCommand"
        made = run_tool(tool, *words, "--create", "--max-life-time-period", "-1")
        assert "User:anna" in made
        described = run_tool(tool, *words, "--describe", "--owner-principal", "User:anna")
        assert described.count("User:anna") >= 1
