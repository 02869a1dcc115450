"""Brokers with tiered storage: copies, local retention, leader changes, deleted topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.observability.console import history
from ottla.storage.remote.object_keys import to_text
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from ottla.testing import Broker, Cluster
from tests.doubles.command_line import CommandLine
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import (
    TIERED_TOPIC,
    delete_topic,
    is_local_only_from,
    log_of,
    produce,
    properties,
    remote_logs,
    remote_segments,
    stored_segments,
    tiered_settings,
)

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def cluster(store: Path) -> Iterator[Cluster]:
    # Brokers end cleanly here: on a busy machine no session must end by itself.
    settings = {
        **tiered_settings(store, metadata_replicas=3),
        "zookeeper_session_timeout_ms": 60_000,
    }
    with Cluster(brokers=3, **settings) as cluster:
        yield cluster


def copied(broker: Broker, topic: str) -> set[tuple[int, UUID]]:
    """(offset, segment id) of what was copied. An offset is there twice if the leader changed at
    the moment of its copy, as in Kafka."""
    return {
        (offset, each.segment_id.id)
        for each in remote_segments(broker, topic)
        if each.state is FINISHED
        for offset in range(each.start_offset, each.end_offset + 1)
    }


def check_copied_once(segments: list[RemoteLogSegmentMetadata], end_offset: int) -> None:
    """Each offset is in one segment, and nothing else is left."""
    assert {each.state for each in segments} == {FINISHED}
    offsets = [range(each.start_offset, each.end_offset + 1) for each in segments]
    assert [offset for each in offsets for offset in each] == list(range(end_offset))


def leader_of(cluster: Cluster, topic: str) -> int:
    def leader() -> int:
        running = next(each for each in cluster.brokers if each.is_running)
        state = running.server.parts.metadata.snapshot.partition(topic, 0)
        return 0 if state is None or state.leader < 1 else state.leader

    found = eventually(lambda: leader() if cluster[leader() or 1].is_running else 0)
    assert isinstance(found, int)
    return found


def test_a_cluster_copies_on_after_a_leader_change(
    cluster: Cluster, store: Path, tmp_path: Path
) -> None:
    cluster.create_topic("history", config=TIERED_TOPIC)
    produce(cluster.bootstrap, "history", 10)
    eventually(lambda: is_local_only_from(cluster.brokers, "history", 9))
    first = leader_of(cluster, "history")
    cluster[first].pause()
    running = [each for each in cluster.brokers if each.is_running]
    produce(",".join(each.bootstrap for each in running), "history", 10)
    eventually(lambda: is_local_only_from(running, "history", 19))
    cluster[first].start()
    produce(cluster.bootstrap, "history", 1)
    eventually(lambda: is_local_only_from(cluster.brokers, "history", 20))

    def all_know_the_same() -> bool:
        found = [copied(each, "history") for each in cluster.brokers]
        offsets = {offset for offset, _ in found[0]}
        return offsets == set(range(20)) and found[0] == found[1] == found[2]

    eventually(all_know_the_same, lambda: [copied(each, "history") for each in cluster.brokers])
    assert {log_of(each, "history").log_start_offset for each in cluster.brokers} == {0}
    ids = {segment_id for _, segment_id in copied(cluster.brokers[0], "history")}
    stored = stored_segments(store)
    assert all(any(to_text(each) in name for name in stored) for each in ids)

    ottla = CommandLine(cluster.bootstrap)
    (row,) = ottla.done("tiered", "status", "--json").value
    assert (row["topic"], row["segments"], row["end_offset"]) == ("history", len(ids), 19)
    config = tmp_path / "server.properties"
    config.write_text(properties(tiered_settings(store)))
    verified = ottla.done("tiered", "verify", "--config", str(config), "--content", "--json").value
    assert verified == {"segments": len(ids), "problems": []}

    delete_topic(cluster.bootstrap, "history")
    eventually(lambda: not stored_segments(store))


def test_the_console_shows_a_topic_in_remote_storage(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "INTERVAL_MS", 50)
    monkeypatch.setattr(history, "TICK_SECONDS", 0.05)
    console = {"ottla_console_enable": True, "ottla_metrics_address": "127.0.0.1:0"}
    with Broker(tmp_path / "data", **console, **tiered_settings(store)) as broker:
        broker.create_topic("history", config=TIERED_TOPIC)
        produce(broker.bootstrap, "history", 3)
        client = ConsoleClient(broker.server.metrics_port)

        def remote() -> dict[str, float]:
            return client.get("topic?name=history")["remote"] or {}

        def rates() -> list[dict[str, float]]:
            found: list[dict[str, float]] = client.get("topic?name=history")["remote_rates"]
            return found

        shown = {"metadata_count": 2, "copies": 2, "copy_errors": 0, "copy_lag_segments": 0}
        eventually(lambda: remote().items() >= shown.items(), remote)
        # Two samples have the topic, so that what is copied now is between two of them.
        eventually(rates)
        produce(broker.bootstrap, "history", 3)
        eventually(lambda: any(point["copied_bytes"] > 0 for point in rates()), rates)
        assert {point["errors"] for point in rates()} == {0}


def test_a_broker_that_starts_again_copies_on(store: Path, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", **tiered_settings(store))
    with broker:
        broker.create_topic("history", config=TIERED_TOPIC)
        for crash in (False, True):
            produce(broker.bootstrap, "history", 5)
            broker.restart(crash=crash)
        produce(broker.bootstrap, "history", 1)
        eventually(lambda: is_local_only_from([broker], "history", 10))
        finished = [each for each in remote_segments(broker, "history") if each.state is FINISHED]
        check_copied_once(finished, 10)
        assert log_of(broker, "history").log_start_offset == 0


def test_what_cannot_be_copied_stays_on_the_local_disk(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount, nothing = tmp_path / "mount", tmp_path / "nothing"
    nothing.touch()

    def put_below_mount(target: Path) -> None:
        """Without a moment in which the broker could create the directory."""
        link = tmp_path / "link"
        link.symlink_to(target)
        link.replace(mount)

    put_below_mount(store)
    with Broker(tmp_path / "data", **tiered_settings(mount)) as broker:
        broker.create_topic("history", config=TIERED_TOPIC)
        broker.create_topic("other", config=TIERED_TOPIC)
        produce(broker.bootstrap, "history", 3)
        eventually(lambda: is_local_only_from([broker], "history", 2))
        put_below_mount(nothing)
        produce(broker.bootstrap, "history", 5)
        produce(broker.bootstrap, "other", 5)
        eventually(lambda: remote_logs(broker).problems.count("copy") == 2)
        assert log_of(broker, "history").local_log_start_offset == 2
        assert log_of(broker, "other").local_log_start_offset == 0
        state = broker.server._state
        assert state is not None
        (fault,) = (each for each in state.faults() if each.name == "remote-storage-failing")
        assert not fault.stops
        assert "(2 partitions in all)" in fault.problem
        put_below_mount(store)
        eventually(lambda: is_local_only_from([broker], "history", 7))
        eventually(lambda: is_local_only_from([broker], "other", 4))
        eventually(lambda: remote_logs(broker).problem() is None)
        assert "remote-storage-failing" not in {each.name for each in state.faults()}
    lines = [
        record
        for record in caplog.records
        if record.name == "ottla.remote" and record.levelno >= logging.ERROR
    ]
    assert len(lines) == 1
