"""Faults of the embedded broker, as real clients meet them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing import Broker, Fault, KafkaError

SECONDS = 60.0
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(autouse=True)
def no_faults_left(broker: Broker) -> Iterator[None]:
    yield
    broker.faults.clear()


def producer(broker: Broker, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap, **QUIET, **settings})


def deliver(client: Producer, topic: str, value: bytes = b"v") -> str:
    """The name of the error that the delivery ended with, "" for none."""
    outcome: list[str] = []
    client.produce(topic, value, on_delivery=lambda e, _: outcome.append(e.name() if e else ""))
    assert client.flush(SECONDS) == 0
    return outcome[0]


def struck(fault: Fault, hits: int = 1) -> bool:
    return fault.wait(hits, SECONDS)


def test_an_error_reaches_the_client_and_goes(broker: Broker) -> None:
    broker.create_topic("errors")
    client = producer(broker)
    with broker.faults.error("Produce", "INVALID_RECORD") as fault:
        assert deliver(client, "errors") == "INVALID_RECORD"
        assert fault.hits == 1
    assert deliver(client, "errors") == ""
    assert broker.end_offset("errors") == 1


def test_an_error_that_can_be_retried_is_retried(broker: Broker) -> None:
    broker.create_topic("retries")
    fault = broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert deliver(producer(broker), "retries") == ""
    assert fault.hits == 2
    assert broker.end_offset("retries") == 1


def test_a_fault_of_one_topic_leaves_the_others_alone(broker: Broker) -> None:
    for name in ("struck", "spared"):
        broker.create_topic(name)
    client = producer(broker)
    with broker.faults.error("Produce", "INVALID_RECORD", topic="struck"):
        assert deliver(client, "spared") == ""
        assert deliver(client, "struck") != ""


def test_a_fault_of_one_client_leaves_the_others_alone(broker: Broker) -> None:
    broker.create_topic("clients")
    with broker.faults.error("Produce", "INVALID_RECORD", client_id="unlucky"):
        assert deliver(producer(broker, **{"client.id": "unlucky"}), "clients") != ""
        assert deliver(producer(broker, **{"client.id": "lucky"}), "clients") == ""


def test_a_response_lost_after_the_work_was_done(broker: Broker) -> None:
    """With idempotence the record is there once, however often the client had to send it."""
    broker.create_topic("lost")
    client = producer(broker, **{"enable.idempotence": True})
    fault = broker.faults.disconnect("Produce", executed=True, topic="lost", times=1)
    assert deliver(client, "lost") == ""
    assert fault.hits == 1
    assert broker.end_offset("lost") == 1


def test_without_idempotence_it_is_there_twice(broker: Broker) -> None:
    broker.create_topic("twice")
    broker.faults.disconnect("Produce", executed=True, topic="twice", times=1)
    assert deliver(producer(broker, **{"enable.idempotence": False}), "twice") == ""
    assert broker.end_offset("twice") == 2


def test_a_delay_delays(broker: Broker) -> None:
    broker.create_topic("late")
    fault = broker.faults.delay("Produce", 300, topic="late", times=1)
    client = producer(broker)
    client.produce("late", b"v")
    client.poll(0)
    sender = threading.Thread(target=client.flush, args=(SECONDS,))
    sender.start()
    assert struck(fault)
    sender.join(SECONDS)
    assert broker.end_offset("late") == 1


def test_a_dropped_request_gets_no_response_but_its_connection_stays(broker: Broker) -> None:
    with BlockingClient(broker.bootstrap, client_id="dropped") as client:
        client.api_versions()  # connected, so that the time is spent waiting for the response
        with broker.faults.drop("Metadata", client_id="dropped") as fault:
            with pytest.raises(ClientError):
                client.call_once(MetadataRequest(topics=[]), timeout_ms=500)
            assert struck(fault)


def test_a_fetch_by_topic_id_and_session_is_known_by_its_topic(broker: Broker) -> None:
    broker.create_topic("sessions")
    with BlockingClient(broker.bootstrap) as client:
        response = client.metadata(["sessions"])
        topic_id = response.topics[0].topic_id

        def fetch(session_id: int, epoch: int, topics: list[FetchTopic]) -> FetchResponse:
            found = client.call_once(
                FetchRequest(
                    max_wait_ms=0, session_id=session_id, session_epoch=epoch, topics=topics
                )
            )
            assert isinstance(found, FetchResponse)
            return found

        asked = FetchTopic(
            topic_id=topic_id, partitions=[FetchPartition(partition_max_bytes=1 << 20)]
        )
        opened = fetch(0, 0, [asked])
        assert opened.session_id
        with broker.faults.error("Fetch", ErrorCode.KAFKA_STORAGE_ERROR, topic="sessions") as fault:
            assert fetch(opened.session_id, 1, []).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert fault.hits == 1
        assert fetch(opened.session_id, 1, []).error_code == ErrorCode.NONE


def test_an_api_that_is_not_there_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match="Produce"):
        broker.faults.error("Prodcue", 1)


def test_a_crash_keeps_what_was_taken(broker: Broker) -> None:
    with Broker() as crashing:
        client = producer(crashing)
        for number in range(20):
            client.produce("t", str(number).encode())
        assert client.flush(SECONDS) == 0
        before = crashing.bootstrap
        crashing.crash()
        with pytest.raises(RuntimeError, match="the broker is not running"):
            _ = crashing.server
        crashing.start()
        assert crashing.bootstrap == before
        assert crashing.end_offset("t") == 20
        assert deliver(client, "t") == ""  # the same producer continues
        consumer = Consumer({"bootstrap.servers": before, "group.id": "g", **QUIET})
        consumer.assign([TopicPartition("t", 0, 0)])
        values = [message.value() for message in consumer.consume(21, SECONDS)]
        consumer.close()
    assert values == [str(number).encode() for number in range(20)] + [b"v"]


def test_a_topic_that_is_there_is_refused(broker: Broker) -> None:
    broker.create_topic("again", 2, {"retention.ms": 1000})
    with pytest.raises(KafkaError) as caught:
        broker.create_topic("again")
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_many_brokers_at_once() -> None:
    def use(number: int) -> int:
        with Broker() as broker:
            broker.create_topic("t")
            assert deliver(producer(broker), "t", str(number).encode()) == ""
            return broker.end_offset("t")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(8))) == [1] * 8


def test_no_broker_hears_of_an_admin_call_that_failed(broker: Broker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    with (
        broker.faults.error("CreateTopics", "POLICY_VIOLATION", topic="refused"),
        pytest.raises(KafkaException, match="POLICY_VIOLATION"),
    ):
        admin.create_topics([NewTopic("refused", 1)])["refused"].result(SECONDS)
