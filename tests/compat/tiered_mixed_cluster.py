"""A broker of Apache Kafka 3.9.1 with LocalTieredStorage and one of Ottla in one cluster. Their
stores differ, so neither reads what the other has copied. Not part of `make test`:

python -m pytest tests/compat/tiered_mixed_cluster.py
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.storage.remote.metadata_records import REMOTE_LOG_METADATA_TOPIC
from tests.differential.test_tiered_storage import delete_records, offsets, storage_jar, stored
from tests.doubles.apache_kafka import ApacheKafka, start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import TIERED_TOPIC, folder_settings, produce, tiered_settings
from tests.doubles.wire import Wire

KAFKA_ID, OTTLA_ID = 1, 2
TOPIC = "history"
SECONDS = 120.0
COMMON: dict[str, object] = {
    "inter_broker_protocol_version": "3.9",
    "zookeeper_session_timeout_ms": 60_000,
    "auto_leader_rebalance_enable": False,
    "min_insync_replicas": 1,
}
LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


def kafka_settings(settings: dict[str, object], store: Path) -> dict[str, object]:
    return {
        name: value for name, value in settings.items() if not name.startswith("rsm_config")
    } | {
        "remote_log_storage_manager_class_name": LOCAL_TIERED_STORAGE,
        "remote_log_storage_manager_class_path": storage_jar(),
        "remote_log_metadata_manager_listener_name": "PLAINTEXT",
        "rsm_config_dir": store,
    }


def ottla_broker(directory: Path, settings: dict[str, object]) -> BrokerProcess:
    texts = {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
    return BrokerProcess(directory, texts)


def create_topic(bootstrap: str) -> None:
    """One partition, of which Kafka is the preferred leader."""
    rows = [CreatableTopicConfig(name, str(value).lower()) for name, value in TIERED_TOPIC.items()]
    assignments = [CreatableReplicaAssignment(0, [KAFKA_ID, OTTLA_ID])]
    topic = CreatableTopic(
        name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=rows
    )
    with Wire(bootstrap) as wire:
        response = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].error_code == ErrorCode.NONE, response


def fetch(bootstrap: str, offset: int) -> tuple[int, bool]:
    """(error code, whether there are records)"""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )
    with Wire(bootstrap) as wire:
        response = wire.ask(request, 12)
    assert isinstance(response, FetchResponse)
    row = response.responses[0].partitions[0]
    return row.error_code, bool(row.records)


def local_log_start(bootstrap: str) -> int:
    return offsets(bootstrap, TOPIC)[1][2]


def wait_until_in_sync(bootstrap: str) -> None:
    """Both brokers, for the topic and for the metadata."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def isr() -> list[list[int]]:
        topics = admin.list_topics(timeout=60).topics
        names = (TOPIC, REMOTE_LOG_METADATA_TOPIC)
        return [sorted(topics[name].partitions[0].isrs) for name in names]

    eventually(lambda: isr() == [[KAFKA_ID, OTTLA_ID]] * 2, isr, seconds=SECONDS)


def wait_until_leader(bootstrap: str) -> None:
    eventually(lambda: offsets(bootstrap, TOPIC)[0][0] == ErrorCode.NONE, seconds=SECONDS)


def test_the_offsets_are_shared_and_the_records_are_not(tmp_path: Path) -> None:
    store, kafka_store = tmp_path / "store", tmp_path / "kafka-store"
    store.mkdir()
    kafka_store.mkdir()
    settings = tiered_settings(store, metadata_replicas=2) | COMMON
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(tmp_path / "zookeeper"))

        def start_again() -> ApacheKafka:
            more = kafka_settings(settings, kafka_store)
            directory = tmp_path / "kafka"
            return stack.enter_context(
                start_kafka(directory, zookeeper=zookeeper, broker_id=KAFKA_ID, **more)
            )

        kafka = start_again()
        of_ottla = {"broker_id": OTTLA_ID, "zookeeper_connect": zookeeper, **settings}
        ottla = ottla_broker(tmp_path / "ottla", of_ottla)
        stack.callback(lambda: ottla.kill() if ottla.is_running else None)
        ottla.start()

        # Kafka leads and copies. Ottla reads its metadata: it deletes what was copied, locally.
        create_topic(kafka.bootstrap)
        produce(f"{kafka.bootstrap},{ottla.bootstrap}", TOPIC, 8)
        eventually(lambda: local_log_start(kafka.bootstrap) == 7, seconds=SECONDS)
        directory = ottla.data_directory / f"{TOPIC}-0"
        eventually(lambda: local_segments(directory) == [7], seconds=SECONDS)
        assert (stored(kafka_store, TOPIC), stored(store, TOPIC)) == (7, 0)
        wait_until_in_sync(ottla.bootstrap)

        # Ottla leads. The offsets are those of Kafka, and reads below 7 are retried.
        kafka.stop()
        wait_until_leader(ottla.bootstrap)
        expected = [(0, -1, 0, 0), (0, -1, 7, 0), (0, -1, 6, 0)]
        eventually(lambda: offsets(ottla.bootstrap, TOPIC) == expected, seconds=SECONDS)
        storage_error = (ErrorCode.KAFKA_STORAGE_ERROR, False)
        eventually(lambda: fetch(ottla.bootstrap, 0) == storage_error, seconds=SECONDS)
        assert fetch(ottla.bootstrap, 7) == (ErrorCode.NONE, True)
        ottla.wait_for_log("Cannot read offset 0 of partition history-0 from remote storage")
        produce(ottla.bootstrap, TOPIC, 4)
        # Segments are known, and none is in this store: it has to be adopted for a copy.
        ottla.wait_for_log("is not known as the store of this cluster")
        adopt(ottla.bootstrap, store, tmp_path / "store.properties")
        eventually(lambda: local_log_start(ottla.bootstrap) == 11, seconds=SECONDS)
        assert (stored(kafka_store, TOPIC), stored(store, TOPIC)) == (7, 4)

        # A follower needs remote segments of the leader: Kafka is not in sync until the log of the
        # leader begins on the local disk. What it had copied stays in its store.
        kafka = start_again()
        kafka.process.wait_for("Error building remote log auxiliary state for history-0")
        assert delete_records(ottla.bootstrap, TOPIC, 11) == (0, 11)
        wait_until_in_sync(ottla.bootstrap)
        eventually(lambda: stored(store, TOPIC) == 0, seconds=SECONDS)
        assert stored(kafka_store, TOPIC) == 7

        # The same for Ottla with an empty disk behind Kafka.
        ottla.stop()
        wait_until_leader(kafka.bootstrap)
        produce(kafka.bootstrap, TOPIC, 4)
        eventually(lambda: local_log_start(kafka.bootstrap) == 15, seconds=SECONDS)
        shutil.rmtree(directory)
        ottla.start()
        ottla.wait_for_log("Cannot build the state of the records in remote storage, retrying")


def adopt(bootstrap: str, store: Path, config: Path) -> None:
    """As the fault of the store says; none of Kafka's segments is in it."""
    rows = folder_settings(store).items()
    config.write_text("".join(f"rsm.config.{name}={value}\n" for name, value in rows))
    command = ("tiered", "adopt", "--execute", "--json", "--config", str(config))
    adopted = CommandLine(bootstrap).done(*command).value
    assert adopted == {"segments": 7, "present": 0, "adopted": True}


def local_segments(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))
