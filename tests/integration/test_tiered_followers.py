"""Followers of a leader with tiered storage: an empty disk, and leadership after that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.testing import Broker, Cluster
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import (
    TIERED_TOPIC,
    find_log,
    is_local_only_from,
    log_of,
    produce,
    tiered_settings,
)

COUNT = 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "store").mkdir()
    settings = tiered_settings(tmp_path / "store", metadata_replicas=2)
    more = {
        "remote_fetch_max_wait_ms": 20_000,
        "offsets_topic_replication_factor": 1,
        # Brokers end cleanly here: on a busy machine no session must end by itself.
        "zookeeper_session_timeout_ms": 60_000,
    }
    with Cluster(brokers=2, **settings, **more) as cluster:
        yield cluster


def consume(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
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


def leader_of(broker: Broker) -> int:
    state = broker.server.parts.metadata.snapshot.partition("history", 0)
    return -1 if state is None else state.leader


def in_sync(broker: Broker) -> int:
    state = broker.server.parts.metadata.snapshot.partition("history", 0)
    return 0 if state is None else len(state.isr)


def test_a_follower_with_an_empty_disk_catches_up_and_leads(cluster: Cluster) -> None:
    cluster.create_topic("history", config=TIERED_TOPIC)
    produce(cluster.bootstrap, "history", COUNT)

    eventually(lambda: is_local_only_from(cluster.brokers, "history", COUNT - 1))
    leader = cluster[leader_of(cluster.brokers[0])]
    (follower,) = (each for each in cluster.brokers if each is not leader)
    follower.pause()
    for path in follower.directory.glob("history-*"):
        shutil.rmtree(path)  # as with a new disk
    follower.start()

    def has_caught_up() -> bool:
        log = find_log(follower, "history")
        return log is not None and log.log_end_offset == log_of(leader, "history").log_end_offset

    eventually(has_caught_up)
    ours, theirs = log_of(follower, "history"), log_of(leader, "history")
    assert (ours.log_start_offset, ours.local_log_start_offset) == (0, COUNT - 1)
    # The leader has begun another epoch, without records yet.
    assert ours.leader_epochs.entries == theirs.leader_epochs.entries[:1] == [(0, 0)]
    produce(cluster.bootstrap, "history", 3)
    values = [b"%1000d" % number for number in [*range(COUNT), *range(3)]]
    eventually(lambda: in_sync(leader) == 2)
    # One broker alone is below min.insync.replicas, so its high watermark would not advance.
    eventually(lambda: log_of(follower, "history").high_watermark == len(values))
    leader.pause()
    eventually(lambda: leader_of(follower) == follower.server.parts.broker_id)
    assert consume(follower.bootstrap, len(values)) == values
    # It copies on, and the remote segments of the earlier leader stay.
    leader.start()
    produce(cluster.bootstrap, "history", 2)
    end_offset = len(values) + 2
    eventually(lambda: log_of(follower, "history").local_log_start_offset == end_offset - 1)
    assert log_of(follower, "history").log_start_offset == 0
    times = offsets_for_times(follower.bootstrap, [1, 7, COUNT, 1_000_000])
    # Timestamps are those of the first run: 1 to COUNT, then 1 to 3, then 1 and 2.
    assert times == [0, 6, COUNT - 1, -1]


def offsets_for_times(bootstrap: str, timestamps: list[int]) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    found = []
    for timestamp in timestamps:
        (place,) = consumer.offsets_for_times([TopicPartition("history", 0, timestamp)], 60)
        found.append(place.offset)
    consumer.close()
    return found
