"""Nothing in remote storage leaves service without proof: a topic whose tiered storage is disabled,
a store that is not mounted, one from before stores were marked, lost remote log metadata."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ottla.storage.remote.object_store import NAME
from ottla.testing import Broker, Cluster
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import (
    TIERED_TOPIC,
    delete_topic,
    find_log,
    is_local_only_from,
    log_of,
    produce,
    remote_logs,
    remote_segments,
    stored_segments,
    tiered_settings,
)

COUNT = 12


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def settings(store: Path, metadata_replicas: int = 1) -> dict[str, object]:
    return {
        **tiered_settings(store, metadata_replicas=metadata_replicas),
        "remote_fetch_max_wait_ms": 20_000,
        "offsets_topic_replication_factor": 1,
        "zookeeper_session_timeout_ms": 60_000,
    }


def alter(bootstrap: str, topic: str, **config: str | None) -> None:
    """None deletes a setting."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in config.items():
        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name.replace("_", "."), value, incremental_operation=kind)
        resource.add_incremental_config(entry)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def consume(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition("history", 0, 0)])
    found: list[bytes | None] = []

    def has_all() -> bool:
        for message in consumer.consume(100, 0.5):
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= count

    eventually(has_all, lambda: f"{len(found)} of {count} records", pause_seconds=0)
    consumer.close()
    return found


VALUES = [b"%1000d" % number for number in range(COUNT)]


def leader_id(broker: Broker) -> int:
    state = broker.server.parts.metadata.snapshot.partition("history", 0)
    return -1 if state is None else state.leader


def in_sync(broker: Broker) -> int:
    state = broker.server.parts.metadata.snapshot.partition("history", 0)
    return 0 if state is None else len(state.isr)


def broker_id(broker: Broker) -> int:
    return broker.server.parts.broker_id


@pytest.fixture
def cluster(store: Path) -> Iterator[Cluster]:
    with Cluster(brokers=2, **settings(store, metadata_replicas=2)) as cluster:
        yield cluster


@pytest.mark.parametrize("value", ["false", None])
def test_a_topic_that_is_disabled_keeps_its_records(
    cluster: Cluster, store: Path, value: str | None
) -> None:
    cluster.create_topic("history", config={**TIERED_TOPIC, "min.insync.replicas": 1})
    produce(cluster.bootstrap, "history", COUNT)
    eventually(lambda: is_local_only_from(cluster.brokers, "history", COUNT - 1))
    stored = stored_segments(store)
    alter(cluster.bootstrap, "history", remote_storage_enable=value)

    def is_disabled() -> bool:
        logs = [log_of(each, "history") for each in cluster.brokers]
        return not any(log.config.remote_storage_enable for log in logs)

    eventually(is_disabled)
    assert consume(cluster.bootstrap, COUNT) == VALUES
    # A new follower begins behind the remote segments, and leads then.
    leader = cluster[leader_id(cluster.brokers[0])]
    (follower,) = (each for each in cluster.brokers if each is not leader)
    follower.pause()
    for path in follower.directory.glob("history-*"):
        shutil.rmtree(path)
    follower.start()

    def has_caught_up() -> bool:
        log = find_log(follower, "history")
        return log is not None and log.log_end_offset == COUNT and in_sync(leader) == 2

    eventually(has_caught_up)
    assert log_of(follower, "history").log_start_offset == 0
    leader.pause()
    eventually(lambda: leader_id(follower) == broker_id(follower))
    assert consume(follower.bootstrap, COUNT) == VALUES
    leader.start()
    eventually(lambda: in_sync(follower) == 2)
    for crash in (False, True):
        for each in cluster.brokers:
            each.restart(crash=crash)
            eventually(lambda: in_sync(cluster.brokers[0]) == in_sync(cluster.brokers[1]) == 2)
        assert consume(cluster.bootstrap, COUNT) == VALUES
    # Nothing is copied, and nothing is lost when it is enabled again.
    produce(cluster.bootstrap, "history", 2)
    assert stored_segments(store) == stored
    alter(cluster.bootstrap, "history", remote_storage_enable="true")
    eventually(lambda: is_local_only_from(cluster.brokers, "history", COUNT + 1))
    assert stored <= stored_segments(store)
    assert consume(cluster.bootstrap, COUNT + 2)[:COUNT] == VALUES
    delete_topic(cluster.bootstrap, "history")
    eventually(lambda: not stored_segments(store))


def test_retention_of_a_topic_that_is_disabled_deletes_its_remote_segments(
    store: Path, tmp_path: Path
) -> None:
    with Broker(tmp_path / "data", **settings(store)) as broker:
        broker.create_topic("history", config=TIERED_TOPIC)
        produce(broker.bootstrap, "history", COUNT)
        eventually(lambda: is_local_only_from([broker], "history", COUNT - 1))
        alter(broker.bootstrap, "history", remote_storage_enable="false")
        broker.restart()
        alter(broker.bootstrap, "history", retention_bytes="4000")
        # Three segments in remote storage and the active one are less, one more is not.
        eventually(lambda: len(stored_segments(store)) == 3)
        start = log_of(broker, "history").log_start_offset
        assert start == COUNT - 4
        alter(broker.bootstrap, "history", cleanup_policy="compact")
        broker.restart(crash=True)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition("history", 0, start)])
        message = eventually(lambda: consumer.poll(0.5))
        assert message.value() == VALUES[start]
        consumer.close()


@pytest.mark.parametrize(
    ("is_there", "restarts"),
    [(True, True), (True, False), (False, False)],
    ids=["empty mount point at the start", "empty mount point", "no folder"],
)
def test_a_store_that_is_not_mounted_gets_nothing_and_loses_nothing(
    store: Path, tmp_path: Path, is_there: bool, restarts: bool
) -> None:
    away = tmp_path / "away"
    with Broker(tmp_path / "data", **settings(store)) as broker:
        for topic in ("history", "deleted"):
            broker.create_topic(topic, config=TIERED_TOPIC)
            produce(broker.bootstrap, topic, COUNT)
            eventually(lambda topic=topic: is_local_only_from([broker], topic, COUNT - 1))
        before = stored_segments(store)
        if restarts:
            broker.pause()
        store.rename(away)
        if is_there:
            store.mkdir()
        if restarts:
            broker.start()
        delete_topic(broker.bootstrap, "deleted")
        problems = remote_logs(broker).problems
        eventually(lambda: problems.count("deletion") == 1)
        alter(broker.bootstrap, "history", retention_ms="1", local_retention_ms="1")
        eventually(lambda: problems.count("expiration") == 1)
        known = len(remote_segments(broker, "history"))
        alter(broker.bootstrap, "history", retention_ms="-1", local_retention_ms="-2")
        produce(broker.bootstrap, "history", 3)
        eventually(lambda: problems.count("copy") == 1)
        problem = remote_logs(broker).problem()
        assert problem is not None
        assert str(store) in problem
        state = broker.server._state
        assert state is not None
        assert "remote-storage-failing" in {each.name for each in state.faults()}
        assert len(remote_segments(broker, "history")) >= known > 0
        assert not [path for path in store.rglob("*") if path.is_file()]
        assert stored_segments(away) == before
        local = log_of(broker, "history")
        assert local.log_end_offset - local.local_log_start_offset >= 3
        if is_there:
            shutil.rmtree(store)
        away.rename(store)
        eventually(lambda: remote_logs(broker).problem() is None)
        eventually(lambda: is_local_only_from([broker], "history", COUNT + 2))

        def has_no_orphans() -> bool:
            ids = {each.start_offset for each in remote_segments(broker, "history")}
            names = {path.stem for path in store.rglob("*.log")}
            return len(names) == len(ids) and not list(store.glob("deleted-*/*/*"))

        eventually(has_no_orphans)


@pytest.mark.parametrize("has_segments", [True, False])
def test_a_store_from_before_stores_were_marked_is_used(
    store: Path, tmp_path: Path, has_segments: bool
) -> None:
    with Broker(tmp_path / "data", **settings(store)) as broker:
        broker.create_topic("history", config=TIERED_TOPIC)
        produce(broker.bootstrap, "history", 4)
        eventually(lambda: is_local_only_from([broker], "history", 3))
        if not has_segments:
            delete_topic(broker.bootstrap, "history")
            eventually(lambda: not stored_segments(store))
        broker.pause()
        (marker,) = store.glob(f"{NAME}*")
        marker.unlink()
        broker.start()
        if not has_segments:
            broker.create_topic("history", config=TIERED_TOPIC)
        produce(broker.bootstrap, "history", 4)
        end = 7 if has_segments else 3
        eventually(lambda: is_local_only_from([broker], "history", end))
        assert marker.exists()
