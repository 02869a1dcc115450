"""Replication throttles, set and taken away at run time, on either side of a copy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.doubles.broker_cluster import start_cluster
from tests.doubles.eventually import eventually
from tests.doubles.producing import Outgoing, produce

pytestmark = pytest.mark.zookeeper

SECONDS = 60.0
TOPIC = "throttled"
# A fetch may exceed the rate, then the copy waits until the rate is down. Held back is what is not
# copied in a time in which it could have been many times.
RATE = 50_000
BACKLOG_BYTES = 8_000_000
HELD_BACK_SECONDS = 3.0


def set_config(admin: AdminClient, kind: ResourceType, name: str, **settings: str | None) -> None:
    """`None` takes a setting away."""
    entries = [
        ConfigEntry(
            setting.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for setting, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def in_sync(admin: AdminClient) -> set[int]:
    return set(admin.list_topics(TOPIC, SECONDS).topics[TOPIC].partitions[0].isrs)


def write_backlog(bootstrap: str) -> None:
    rows = [Outgoing(bytes(10_000), partition=0)] * (BACKLOG_BYTES // 10_000)
    produce(bootstrap, TOPIC, rows, acks=1)


@pytest.mark.parametrize(("side", "throttled_id"), [("leader", 1), ("follower", 2)])
def test_a_throttled_copy_creeps_until_the_throttle_is_taken_away(
    tmp_path: Path, side: str, throttled_id: int
) -> None:
    rate = f"{side}_replication_throttled_rate"
    replicas = f"{side}_replication_throttled_replicas"
    # The killed broker leaves the in-sync replicas by its lag; sessions may be long.
    with start_cluster(tmp_path, count=2, zookeeper_session_timeout_ms=18_000) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap})
        topic = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])
        admin.create_topics([topic])[TOPIC].result(SECONDS)
        eventually(lambda: in_sync(admin) == {1, 2}, "the topic is not ready")
        set_config(admin, ResourceType.BROKER, str(throttled_id), **{rate: str(RATE)})
        set_config(admin, ResourceType.TOPIC, TOPIC, **{replicas: f"0:{throttled_id}"})
        cluster[2].kill()
        write_backlog(cluster[1].bootstrap)
        eventually(lambda: in_sync(admin) == {1}, "the killed broker stays in sync")
        cluster[2].start()
        # A slow machine only makes the copy slower.
        started_at = time.monotonic()
        while time.monotonic() - started_at < HELD_BACK_SECONDS:
            assert in_sync(admin) == {1}, f"the {side} does not hold back"
            time.sleep(0.1)
        set_config(admin, ResourceType.BROKER, str(throttled_id), **{rate: None})
        eventually(lambda: in_sync(admin) == {1, 2}, "the copy does not end without a throttle")
        name = Path(f"{TOPIC}-0", "00000000000000000000.log")
        leading, following = (broker.data_directory / name for broker in cluster.brokers.values())
        eventually(lambda: leading.read_bytes() == following.read_bytes(), "the replicas differ")
