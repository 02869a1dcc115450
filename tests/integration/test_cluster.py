"""Three brokers on a real ZooKeeper: what happens to clusters, seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from tests.doubles.acknowledged_records import (
    PARTITIONS,
    TOPIC,
    AcknowledgedRecords,
    identical_logs,
)
from tests.doubles.broker_cluster import BrokerCluster, start_cluster
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.zookeeper


def directories(cluster: BrokerCluster) -> list[Path]:
    return [broker.data_directory for broker in cluster.brokers.values()]


def test_a_cluster_keeps_everything_through_a_kill_and_a_stop(tmp_path: Path) -> None:
    with start_cluster(tmp_path, min_insync_replicas=2) as cluster:
        records = AcknowledgedRecords(cluster.bootstrap)
        records.create_topic()
        records.produce(1000)

        cluster[2].kill()
        records.produce(1000)
        eventually(lambda: 2 not in records.leaders(), "the killed broker still leads")
        cluster[2].start()
        eventually(records.all_in_sync, "the killed broker is not back in sync")

        assert cluster[1].stop() == 0
        records.produce(1000)
        cluster[1].start()
        eventually(records.all_in_sync, "the stopped broker is not back in sync")

        records.assert_nothing_lost_or_doubled()
        eventually(lambda: identical_logs(directories(cluster)), "the replicas differ")


def test_a_controlled_stop_hands_leadership_over_first(tmp_path: Path) -> None:
    with start_cluster(tmp_path) as cluster:
        records = AcknowledgedRecords(cluster.bootstrap)
        records.create_topic()
        assert records.leaders() == {1, 2, 3}
        assert cluster[3].stop() == 0
        assert "Controlled shutdown succeeded: no partition waits for a leader" in cluster[3].log()
        eventually(lambda: records.leaders() == {1, 2}, "a broker has the old leaders")


def test_records_are_deleted_on_every_replica(tmp_path: Path) -> None:
    with start_cluster(tmp_path) as cluster:
        records = AcknowledgedRecords(cluster.bootstrap)
        records.create_topic()
        records.produce(1000)
        # To the end of each: a client may well leave a partition with very few records.
        partitions = [TopicPartition(TOPIC, index, OFFSET_END) for index in range(PARTITIONS)]
        deleted = records.admin.delete_records(partitions, operation_timeout=20)
        # Completed when the followers have heard of it; an error when the time is up before that.
        marks = [future.result(20).low_watermark for future in deleted.values()]
        assert sum(marks) == 1000


@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_directory_that_is_moved_away_costs_its_partition_one_replica(
    tmp_path: Path, is_put_back: bool
) -> None:
    with start_cluster(tmp_path, min_insync_replicas=2) as cluster:
        records = AcknowledgedRecords(cluster.bootstrap)
        records.create_topic()
        records.produce(1000)
        one, *others = (each.id for each in records.partitions() if each.leader == 1)
        log = cluster[1].data_directory / f"{TOPIC}-{one}"
        moved = log.rename(tmp_path / "moved")

        def is_led_elsewhere() -> bool:
            each = records.partitions()[one]
            return each.leader in {2, 3} and 1 not in each.isrs

        eventually(is_led_elsewhere, "the partition without a directory has its leader still")
        assert all(records.partitions()[index].leader == 1 for index in others)
        assert all(1 in each.isrs for each in records.partitions() if each.id != one)
        assert f"The directory {log} of a log was deleted or moved" in cluster[1].log()
        records.produce(1000)

        assert cluster[1].stop() == 0
        if is_put_back:
            moved.rename(log)
        cluster[1].start()
        eventually(records.all_in_sync, "the replica is not back in sync")
        records.assert_nothing_lost_or_doubled()
        eventually(lambda: identical_logs(directories(cluster)), "the replicas differ")


def test_a_directory_that_is_moved_away_and_has_no_other_replica(tmp_path: Path) -> None:
    with start_cluster(tmp_path, count=1, offsets_topic_replication_factor=1) as cluster:
        records = AcknowledgedRecords(cluster.bootstrap)
        records.create_topic(replicas=1)
        records.produce(1000)
        log = cluster[1].data_directory / f"{TOPIC}-0"
        moved = log.rename(tmp_path / "moved")
        eventually(lambda: records.partitions()[0].leader == -1, "it has its leader still")
        assert records.leaders() == {-1, 1}
        cluster[1].stop()
        moved.rename(log)
        cluster[1].start()
        eventually(lambda: records.leaders() == {1}, "it is not served again")
        records.produce(1000)
        records.assert_nothing_lost_or_doubled()
