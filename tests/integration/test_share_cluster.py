"""Share groups (KIP-932) on three brokers, with the share consumers of confluent-kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.broker_cluster import start_cluster
from tests.doubles.eventually import eventually
from tests.doubles.share_workers import ShareWorkers, produce, values_of, warm

pytestmark = pytest.mark.zookeeper

TOPIC = "work"
PARTITIONS = 3
STATE_PARTITIONS = 3


def finish(workers: ShareWorkers, values: list[str]) -> None:
    eventually(
        lambda: not workers.history.unfinished(values),
        lambda: (workers.history.problems(values)[:10], workers.errors[-10:]),
        seconds=180.0,  # records of a broker that is killed stay locked for 30 s
    )


def test_a_killed_broker_makes_nothing_be_delivered_twice(tmp_path: Path) -> None:
    """Leaders, share coordinators and group coordinators of some keys move."""
    with start_cluster(
        tmp_path,
        min_insync_replicas=2,
        group_coordinator_rebalance_protocols="classic,consumer,share",
        share_coordinator_state_topic_num_partitions=STATE_PARTITIONS,
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        with ShareWorkers(cluster.bootstrap, TOPIC, "workers", 4) as workers:

            def begin() -> bool:
                warm(cluster.bootstrap, TOPIC, PARTITIONS)
                return workers.history.has_begun(PARTITIONS)

            eventually(begin, lambda: workers.errors[-10:], pause_seconds=0.5)
            values = values_of(60)
            produce(cluster.bootstrap, TOPIC, values)
            finish(workers, values)
            more = values_of(60, len(values))
            values += more
            produce(cluster.bootstrap, TOPIC, more[:30])
            cluster[1].kill()  # the controller, as it was the first broker
            produce(cluster.bootstrap, TOPIC, more[30:])
            finish(workers, values)
        assert workers.history.problems(values) == []
