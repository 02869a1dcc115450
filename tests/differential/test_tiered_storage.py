"""Tiered storage (KIP-405) beside Apache Kafka with its own LocalTieredStorage: the rules of topic
settings, and the offsets of a topic whose segments were copied and left the local disk."""

from __future__ import annotations

import random
import re
import string
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Place

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.differential.asking import Pair
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY, run_tool, start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.maven import ALONE, fetch_jars
from tests.doubles.tiered_topics import TIERED_TOPIC, produce, tiered_settings
from tests.doubles.wire import Wire

pytestmark = pytest.mark.kafka

TOPIC = 2
SET, DELETE = 0, 1
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5
READ_COMMITTED = 1
REMOTE = {"remote.storage.enable": "true"}


def storage_jar() -> Path:
    """The jar with Kafka's LocalTieredStorage."""
    library = REPOSITORY / ".cache" / f"kafka-storage-test-{KAFKA_VERSION}" / "lib"
    jar = library / f"kafka-storage-{KAFKA_VERSION}-test.jar"
    if not jar.exists():
        more = f"<classifier>test</classifier>{ALONE}"
        fetch_jars(library, [("org.apache.kafka", "kafka-storage", KAFKA_VERSION, more)])
    return jar


class TieredPair(Pair):
    """Kafka and Ottla, each with a store in a folder."""

    def __init__(self, kafka: str, ottla: str, kafka_store: Path, ottla_store: Path) -> None:
        super().__init__(kafka, ottla)
        self.brokers = {"kafka": (kafka, kafka_store), "ottla": (ottla, ottla_store)}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredPair]:
    jar, store = storage_jar(), tmp_path_factory.mktemp("store")
    kafka_store = tmp_path_factory.mktemp("kafka-store")
    settings = tiered_settings(store)
    storage = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    kafka_settings = {
        name: value for name, value in settings.items() if not name.startswith("rsm_config")
    } | {
        "remote_log_storage_manager_class_name": storage,
        "remote_log_storage_manager_class_path": jar,
        "remote_log_metadata_manager_listener_name": "PLAINTEXT",
        "rsm_config_dir": kafka_store,
        "zookeeper_session_timeout_ms": 60_000,
    }
    ottla_settings = {
        "transaction_state_log_num_partitions": "1",
        "transaction_state_log_replication_factor": "1",
        "transaction_state_log_min_isr": "1",
    } | {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in settings.items()
    }
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), **kafka_settings) as kafka,
        start_broker(tmp_path_factory.mktemp("ottla"), **ottla_settings) as ottla,
    ):
        yield TieredPair(kafka.bootstrap, ottla.bootstrap, kafka_store, store)


def create(name: str, configs: dict[str, object]) -> CreateTopicsRequest:
    rows = [CreatableTopicConfig(key, str(value).lower()) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=rows)
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


def new_name() -> str:
    return f"tiered-{uuid.uuid4().hex[:8]}"


RULES: list[dict[str, object]] = [
    {},
    {"local.retention.ms": 1000, "local.retention.bytes": 1000},
    {"retention.ms": 10, "local.retention.ms": 10},
    {"retention.ms": 10, "local.retention.ms": 11},
    {"retention.ms": 10, "local.retention.ms": -1},
    {"retention.ms": -1, "local.retention.ms": -1},
    {"retention.bytes": 10, "local.retention.bytes": 11},
    {"retention.bytes": 10, "local.retention.bytes": -1},
    {"retention.bytes": 10, "local.retention.bytes": -2},
    {"local.retention.bytes": -3},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete"},
    {"remote.log.copy.disable": "true"},
    {"remote.log.delete.on.disable": "true"},
    {"remote.storage.enable": "false", "remote.log.copy.disable": "true"},
    {"remote.storage.enable": "false", "local.retention.ms": 11, "retention.ms": 10},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_of_creations(tiered: TieredPair, rule: dict[str, object]) -> None:
    tiered.compare(create(new_name(), {**REMOTE, **rule}), [5], frozenset({"configs"}))


CHANGES: list[list[tuple[str, int, str | None]]] = [
    [("remote.storage.enable", SET, "false")],
    [("remote.storage.enable", DELETE, None)],
    [
        ("remote.storage.enable", SET, "false"),
        ("remote.log.delete.on.disable", SET, "true"),
    ],
    [("remote.log.copy.disable", SET, "true")],
    [("cleanup.policy", SET, "compact")],
    [("retention.ms", SET, "10"), ("local.retention.ms", SET, "11")],
    [("local.retention.ms", SET, "5")],
]


def test_rules_of_changes(tiered: TieredPair) -> None:
    name = new_name()
    tiered.compare(create(name, dict(REMOTE)), [4])
    for changes in CHANGES:
        configs = [AlterableConfig(*each) for each in changes]
        resource = AlterConfigsResource(TOPIC, name, configs)
        tiered.compare(IncrementalAlterConfigsRequest([resource], False), [1])
    plain = new_name()
    tiered.compare(create(plain, {}), [4])
    enable = [AlterableConfig("remote.storage.enable", SET, "true")]
    resource = AlterConfigsResource(TOPIC, plain, enable)
    tiered.compare(IncrementalAlterConfigsRequest([resource], False), [1])


def offsets(bootstrap: str, topic: str) -> list[tuple[int, int, int, int]]:
    found = []
    with Wire(bootstrap) as wire:
        for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED):
            partition = ListOffsetsPartition(0, timestamp=timestamp)
            request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [partition])])
            response = wire.ask(request, 9)
            assert isinstance(response, ListOffsetsResponse)
            row = response.topics[0].partitions[0]
            found.append((row.error_code, row.timestamp, row.offset, row.leader_epoch))
    return found


def test_offsets_after_copies_and_local_retention(tiered: TieredPair) -> None:
    name = new_name()
    tiered.compare(create(name, TIERED_TOPIC), [4])
    assert offsets(tiered.kafka, name) == offsets(tiered.ottla, name)
    for bootstrap in (tiered.kafka, tiered.ottla):
        produce(bootstrap, name, 8)
    expected = [(0, -1, 0, 0), (0, -1, 7, 0), (0, -1, 6, 0)]
    for bootstrap in (tiered.kafka, tiered.ottla):
        eventually(
            lambda bootstrap=bootstrap: offsets(bootstrap, name) == expected,  # type: ignore[misc]
            lambda bootstrap=bootstrap: offsets(bootstrap, name),
        )


def last_stable_offset(bootstrap: str, topic: str) -> int:
    with Wire(bootstrap) as wire:
        partition = ListOffsetsPartition(0, timestamp=LATEST)
        topics = [ListOffsetsTopic(topic, [partition])]
        response = wire.ask(ListOffsetsRequest(-1, READ_COMMITTED, topics), 9)
    assert isinstance(response, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


def alter(bootstrap: str, topic: str, name: str, value: object) -> None:
    configs = [AlterableConfig(name, SET, str(value))]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC, topic, configs)], False)
    with Wire(bootstrap) as wire:
        response = wire.ask(request, 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == 0


def delete_records(bootstrap: str, topic: str, offset: int) -> tuple[int, int]:
    """(error code, low watermark)"""
    partition = DeleteRecordsPartition(0, offset)
    with Wire(bootstrap) as wire:
        response = wire.ask(
            DeleteRecordsRequest([DeleteRecordsTopic(topic, [partition])], 30_000), 2
        )
    assert isinstance(response, DeleteRecordsResponse)
    row = response.topics[0].partitions[0]
    return row.error_code, row.low_watermark


def stored(store: Path, topic: str) -> int:
    """How many segments of the topic are in the store."""
    logs = [path for path in store.rglob("*.log") if path.is_file()]
    return sum(topic in str(path) for path in logs)


Seen = tuple[list[tuple[int, int, int, int]], int]


def see(tiered: TieredPair, broker: str, topic: str) -> Seen:
    bootstrap, store = tiered.brokers[broker]
    return offsets(bootstrap, topic), stored(store, topic)


def tiered_topic(tiered: TieredPair) -> str:
    """Offsets 0 to 6 are in remote storage, a segment each, and 7 is on the disk."""
    name = new_name()
    tiered.compare(create(name, TIERED_TOPIC), [4])
    for broker, (bootstrap, _) in tiered.brokers.items():
        produce(bootstrap, name, 8)
        is_tiered = ([(0, -1, 0, 0), (0, -1, 7, 0), (0, -1, 6, 0)], 7)
        wait_for(tiered, broker, name, is_tiered)
    return name


def wait_for(tiered: TieredPair, broker: str, topic: str, expected: Seen) -> None:
    eventually(
        lambda: see(tiered, broker, topic) == expected,
        lambda: (broker, see(tiered, broker, topic), expected),
    )


@pytest.mark.parametrize(("offset", "left"), [(3, 4), (8, 0)])
def test_deleted_records_leave_remote_storage(tiered: TieredPair, offset: int, left: int) -> None:
    """Below the local log start, and the whole log."""
    name = tiered_topic(tiered)
    tiered_epoch = 0 if left else -1
    expected = [(0, -1, offset, 0), (0, -1, max(offset, 7), 0), (0, -1, 6, tiered_epoch)]
    for broker, (bootstrap, _) in tiered.brokers.items():
        assert delete_records(bootstrap, name, 9)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert delete_records(bootstrap, name, offset) == (0, offset)
        wait_for(tiered, broker, name, (expected, left))


def test_retention_of_remote_segments(tiered: TieredPair) -> None:
    """By size, then by time: the records on the disk are copied then, too, and deleted."""
    name = tiered_topic(tiered)
    for broker, (bootstrap, _) in tiered.brokers.items():
        alter(bootstrap, name, "retention.bytes", 3_500)
        by_size = [(0, -1, 4, 0), (0, -1, 7, 0), (0, -1, 6, 0)]
        wait_for(tiered, broker, name, (by_size, 3))
        alter(bootstrap, name, "retention.ms", 1_000)
        by_time = [(0, -1, 8, 0), (0, -1, 8, 0), (0, -1, 7, -1)]
        wait_for(tiered, broker, name, (by_time, 0))


def fetch(bootstrap: str, topic: str, offset: int) -> tuple[int, int]:
    """(error code, number of bytes)"""
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=10_000)
    request = FetchRequest(
        max_wait_ms=1, max_bytes=10_000, topics=[FetchTopic(topic, partitions=[partition])]
    )
    with Wire(bootstrap) as wire:
        response = wire.ask(request, 12)
    assert isinstance(response, FetchResponse)
    row = response.responses[0].partitions[0]
    return row.error_code, len(bytes(row.records or b""))


def test_a_topic_whose_tiered_storage_is_disabled_is_read_on(tiered: TieredPair) -> None:
    """Both allow it. Kafka goes on as before until its next start."""
    name = tiered_topic(tiered)
    for bootstrap, store in tiered.brokers.values():
        for value in ("false", "true"):
            alter(bootstrap, name, "remote.storage.enable", value)
            code, size = fetch(bootstrap, name, 0)
            assert (code, size > 1000) == (0, True)
            assert offsets(bootstrap, name)[0] == (0, -1, 0, 0)
            assert stored(store, name) == 7


Record = tuple[int, str]
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def produce_transactions(bootstrap: str, topic: str, count: int) -> dict[str, list[Record]]:
    """Transactions of two batches, each third one aborted. Returns (offset, value) of the records,
    by the isolation level that reads them."""
    text = random.Random(1)
    committed: list[Record] = []
    everything: list[Record] = []
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(60)
    for number in range(count):
        sent: list[Record] = []

        def delivered(error: object, message: object, sent: list[Record] = sent) -> None:
            assert error is None, error
            sent.append((message.offset(), message.value().decode()))  # type: ignore[attr-defined]

        producer.begin_transaction()
        for _ in range(2):
            value = "".join(text.choices(string.ascii_letters, k=600))
            producer.produce(topic, value, partition=0, on_delivery=delivered)
            assert producer.flush(60) == 0
        everything += sent
        if number % 3 == 1:
            producer.abort_transaction(60)
        else:
            committed += sent
            producer.commit_transaction(60)
    return {"read_committed": committed, "read_uncommitted": everything}


def read_by_java(bootstrap: str, topic: str, level: str, count: int) -> list[Record]:
    output = run_tool(
        *(CONSOLE, "--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0"),
        *("--offset", "earliest", "--isolation-level", level, "--max-messages", str(count)),
        *("--timeout-ms", "60000", "--property", "print.offset=true"),
    )
    return [(int(at), value) for at, value in re.findall(r"^Offset:(\d+)\t(\w+)$", output, re.M)]


def read_by_librdkafka(bootstrap: str, topic: str, level: str) -> list[Record]:
    """Until the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": level,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    found: list[Record] = []

    def is_at_end() -> bool:
        message = consumer.poll(1.0)
        if message is None:
            return False
        error, value, offset = message.error(), message.value(), message.offset()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return True
        assert value is not None
        assert offset is not None
        found.append((offset, value.decode()))
        return False

    eventually(is_at_end, lambda: f"{len(found)} records", pause_seconds=0)
    consumer.close()
    return found


def test_clients_read_history_across_the_boundary(tiered: Pair) -> None:
    """The Java console consumer and librdkafka, at both isolation levels, from both brokers."""
    name = new_name()
    tiered.compare(create(name, TIERED_TOPIC), [4])
    written = {}
    for bootstrap in (tiered.kafka, tiered.ottla):
        written[bootstrap] = produce_transactions(bootstrap, name, 15)
    assert written[tiered.kafka] == written[tiered.ottla]
    # The last marker is written after the producer has its response.
    for bootstrap in written:
        eventually(lambda at=bootstrap: last_stable_offset(at, name) == 45)  # type: ignore[misc]
    eventually(
        lambda: (
            offsets(tiered.kafka, name) == offsets(tiered.ottla, name)
            and offsets(tiered.ottla, name)[1][2] > 35
        ),
        lambda: (offsets(tiered.kafka, name), offsets(tiered.ottla, name)),
    )
    assert offsets(tiered.ottla, name)[1][2] < 45, "the last records are on the local disk"
    for level, expected in written[tiered.ottla].items():
        for bootstrap in (tiered.kafka, tiered.ottla):
            assert read_by_librdkafka(bootstrap, name, level) == expected
            assert read_by_java(bootstrap, name, level, len(expected)) == expected
