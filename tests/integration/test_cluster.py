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
        assert (
            "Controlled shutdown succeeded: no partition waits for another leader"
            in cluster[3].log()
        )
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
