"""Settings of brokers with tiered storage, and what tests see of their topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from ottla.broker.remote.remote_log_manager import RemoteLogManager
from ottla.broker.testing.embedded import Broker
from ottla.protocol.topics import TopicPartition
from ottla.storage.log.log import Log
from ottla.storage.remote.segments import RemoteLogSegmentMetadata

#: A segment for each batch of `produce`; all but the active one leave the local disk.
TIERED_TOPIC: dict[str, object] = {
    "remote.storage.enable": True,
    "segment.bytes": 1500,
    "local.retention.bytes": 1,
    "retention.ms": -1,
    "retention.bytes": 1_000_000,
    "file.delete.delay.ms": 0,
}


def folder_settings(store: Path, chunk_bytes: int = 1024) -> dict[str, str]:
    """Those of a store in a directory that exists."""
    return {
        "storage.backend.class": "filesystem",
        "storage.root": str(store),
        "chunk.size": str(chunk_bytes),
    }


def tiered_settings(
    store: Path | Mapping[str, str], metadata_replicas: int = 1
) -> dict[str, object]:
    """Tasks and retention run all the time. `store` is a directory that exists, or the settings of
    a store."""
    settings = folder_settings(store) if isinstance(store, Path) else store
    return {
        "remote_log_storage_system_enable": True,
        "remote_log_storage_manager_class_name": "aiven",
        "remote_log_manager_task_interval_ms": 100,
        "remote_log_manager_task_retry_backoff_max_ms": 200,
        "rlmm_config_remote_log_metadata_topic_num_partitions": 1,
        "rlmm_config_remote_log_metadata_topic_replication_factor": metadata_replicas,
        **{f"rsm_config_{name.replace('.', '_')}": value for name, value in settings.items()},
        "log_initial_task_delay_ms": 0,
        "log_retention_check_interval_ms": 100,
    }


def large_tiered_settings(store: Path) -> dict[str, object]:
    """For topics of gigabytes: the recommended size of chunks, tasks that run twice a second."""
    return {
        **tiered_settings(folder_settings(store, chunk_bytes=4 << 20)),
        "remote_log_manager_task_interval_ms": 500,
        "log_retention_check_interval_ms": 500,
    }


def properties(settings: dict[str, object]) -> str:
    """The same as a file for `ottla tiered --config`."""
    return "".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items())


def produce(bootstrap: str, topic: str, count: int, timestamp_ms: int = 1) -> None:
    """`count` batches of one record of 1,000 bytes, acknowledged by all replicas in sync."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            *(topic, b"%1000d" % number),
            partition=0,
            timestamp=timestamp_ms + number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        assert producer.flush(60) == 0
    assert failed == []


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(60)


def find_log(broker: Broker, topic: str) -> Log | None:
    """None until the broker has a replica of the partition."""
    return broker.server.parts.replica_manager.log_of(TopicPartition(topic, 0))


def log_of(broker: Broker, topic: str) -> Log:
    log = find_log(broker, topic)
    assert log is not None
    return log


def is_local_only_from(brokers: Iterable[Broker], topic: str, offset: int) -> bool:
    """Whether all of them have deleted the local segments below the offset, and no others."""
    logs = [find_log(each, topic) for each in brokers]
    return all(log is not None and log.local_log_start_offset == offset for log in logs)


def remote_logs(broker: Broker) -> RemoteLogManager:
    found = broker.server.parts.replica_manager.remote_logs
    assert found is not None
    return found


def remote_segments(broker: Broker, topic: str) -> list[RemoteLogSegmentMetadata]:
    """What the broker knows of remote segments, by start offset; empty while it starts."""
    manager, log = remote_logs(broker), find_log(broker, topic)
    partition = None if log is None else manager.partition(log)
    if partition is None or not manager.metadata.is_initialized(partition):
        return []
    return manager.metadata.cache(partition).segments()


def stored_segments(store: Path) -> set[str]:
    """The names of the segments in the store, without the suffix."""
    return {path.stem for path in store.rglob("*.*") if path.is_file()}
