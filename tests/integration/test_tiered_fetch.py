"""Consumers read a whole topic of which most segments are in remote storage only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import Broker
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import remote_logs

PARTITIONS = 2
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "20000",
    "local.retention.bytes": "30000",
    "retention.ms": "-1",
}

Record = tuple[int, int, bytes | None]


def settings(store: dict[str, str]) -> dict[str, object]:
    """Those of a broker with tiered storage, whose tasks run without delay."""
    return {
        "remote_log_storage_system_enable": True,
        "remote_log_storage_manager_class_name": "aiven",
        "remote_log_manager_task_interval_ms": 50,
        "remote_log_manager_task_retry_backoff_ms": 20,
        "remote_log_manager_task_retry_backoff_max_ms": 50,
        "log_retention_check_interval_ms": 100,
        "log_initial_task_delay_ms": 50,
        "rlmm_config_remote_log_metadata_topic_num_partitions": 2,
        "rlmm_config_remote_log_metadata_topic_replication_factor": 1,
        "remote_fetch_max_wait_ms": 20_000,
        **{f"rsm_config_{name.replace('.', '_')}": value for name, value in store.items()},
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[Broker]:
    folder = {"storage.backend.class": "filesystem", "storage.root": str(store)}
    with Broker(**settings({**folder, "chunk.size": "8192"})) as broker:
        yield broker


def create(broker: Broker, topic: str, **more: str) -> None:
    new = NewTopic(topic, PARTITIONS, 1, config={**TIERED, **more})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([new])[topic].result(60)


def produce(broker: Broker, topic: str, count: int, **config: object) -> list[Record]:
    """What a consumer has to get: (partition, offset, value)."""
    random, sent = Random(topic), []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.size": 4000, **config}
    )

    def delivered(error: object, message: object) -> None:
        assert error is None
        sent.append((message.partition(), message.offset(), message.value()))  # type: ignore[attr-defined]

    for number in range(count):
        value = random.randbytes(random.randrange(300))
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(60) == 0
    return sorted(sent)


def wait_until_tiered(broker: Broker, topic: str) -> None:
    """Until only the last segments are on the local disk: no more of them will be deleted."""
    most = int(TIERED["local.retention.bytes"]) + int(TIERED["segment.bytes"])

    def is_tiered() -> bool:
        logs = [log for log in broker.server.parts.logs.logs() if log.topic == topic]
        return len(logs) == PARTITIONS and all(
            log.local_log_start_offset > 0 and log.local.size_in_bytes < most for log in logs
        )

    eventually(is_tiered, "the segments are not in remote storage only")


def consume(broker: Broker, topic: str, count: int, **config: object) -> list[Record]:
    """The records from the begin on, in the order of the partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **config,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[Record] = []

    def has_all() -> bool:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            found.append((message.partition(), message.offset(), message.value()))
        return len(found) >= count

    eventually(has_all, lambda: f"{len(found)} of {count} records", pause_seconds=0)
    consumer.close()
    for index in range(PARTITIONS):
        offsets = [offset for partition, offset, _ in found if partition == index]
        assert offsets == sorted(offsets)
    return sorted(found)


def test_a_consumer_reads_the_whole_topic(broker: Broker) -> None:
    create(broker, "whole")
    sent = produce(broker, "whole", 2_000)
    wait_until_tiered(broker, "whole")
    assert consume(broker, "whole", len(sent)) == sent
    assert remote_logs(broker).statistics.total("read_bytes") > 0
    small = {"fetch.max.bytes": 1_000_000, "max.partition.fetch.bytes": 700}
    assert consume(broker, "whole", len(sent), **small) == sent


def test_aborted_transactions_are_left_out(broker: Broker) -> None:
    create(broker, "transactions")
    random, committed = Random(1), []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tiered"})
    producer.init_transactions(60)
    for number in range(30):
        commit = number % 3 != 0
        producer.begin_transaction()
        for index in range(30):
            value = b"%d-%d " % (number, index) + random.randbytes(200)
            if commit:
                committed.append(value)
            producer.produce("transactions", value, partition=index % PARTITIONS)
        assert producer.flush(60) == 0  # an abort drops what was not sent
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    wait_until_tiered(broker, "transactions")
    found = consume(broker, "transactions", len(committed))
    assert sorted(value for _, _, value in found if value) == sorted(committed)
    everything = consume(broker, "transactions", 900, **{"isolation.level": "read_uncommitted"})
    assert len(everything) == 900


def test_a_store_that_is_away_delays_the_consumer(broker: Broker, store: Path) -> None:
    create(broker, "away")
    sent = produce(broker, "away", 1_000)
    wait_until_tiered(broker, "away")
    hidden = store.with_name("hidden")
    store.rename(hidden)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("away", 0, 0)])
    statistics = remote_logs(broker).statistics
    failed = statistics.total("read_errors")
    eventually(lambda: consumer.poll(0.1) is not None or statistics.total("read_errors") > failed)
    hidden.rename(store)
    consumer.close()
    assert statistics.total("read_errors") > failed
    assert consume(broker, "away", len(sent)) == sent


@pytest.mark.parametrize("damage", ["corrupt", "missing"])
def test_a_damaged_object_delays_the_consumer_until_it_is_repaired(
    broker: Broker, store: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    create(broker, damage)
    sent = [each for each in produce(broker, damage, 1_000) if each[0] == 0]
    wait_until_tiered(broker, damage)
    path = sorted(store.glob(f"{damage}-*/0/*.log"))[1]
    good = path.read_bytes()
    if damage == "corrupt":
        half = len(good) // 2
        path.write_bytes(good[:half] + bytes([good[half] ^ 1]) + good[half + 1 :])
    else:
        path.unlink()
    found: list[Record] = []
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition(damage, 0, 0)])

    def has(count: int) -> bool:
        for message in consumer.consume(500, 0.1):
            assert message.error() is None, message.error()
            found.append((0, message.offset(), message.value()))
        return len(found) >= count

    def has_failed() -> bool:
        return statistics.total("read_errors") > failed + 2

    statistics = remote_logs(broker).statistics
    failed = statistics.total("read_errors")
    eventually(lambda: has(len(sent)) or has_failed())
    assert found == sent[: len(found)], "no record is skipped, no wrong byte is returned"
    assert len(found) < len(sent)
    copy = path.with_name("copy")
    copy.write_bytes(good)
    copy.rename(path)
    eventually(lambda: has(len(sent)), lambda: f"{len(found)} of {len(sent)} records")
    consumer.close()
    assert found == sent
    [line] = [
        record.getMessage()
        for record in caplog.records
        if record.name == "ottla.remote" and record.levelname == "ERROR"
    ]
    assert line.startswith("Cannot read offset ")
    assert f"of partition {damage}-0 from remote storage, clients retry: The object " in line
    assert path.name in line
