"""What must hold while everything goes wrong, as clients see it.

Two minutes with one seed in every run. For more:

    OTTLA_CHAOS_SECONDS=1200 OTTLA_CHAOS_SEED=7 python -m pytest -s tests/chaos

With OTTLA_CHAOS_KAFKA=1 the first broker is Apache Kafka 3.9.1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.run import LEADERLESS_SECONDS_MAX, TROUBLE_SECONDS, Chaos
from tests.doubles.chaos_cluster import BROKER_IDS, ChaosCluster, start_chaos_cluster
from tests.doubles.faulty_disk import FAULTS

pytestmark = pytest.mark.zookeeper

SECONDS = float(os.environ.get("OTTLA_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("OTTLA_CHAOS_SEED", "1"))
KAFKA_IDS = (1,) if os.environ.get("OTTLA_CHAOS_KAFKA") else ()

LONG_OUTAGE_SECONDS = 60.0
# A broker of Kafka that was killed takes seconds to start, and elects more slowly.
KAFKA_SECONDS = 10


class BrokersChaos(Chaos):
    """Brokers whose every connection can be cut, and whose disks fail."""

    cluster: ChaosCluster
    leaderless_seconds_max = LEADERLESS_SECONDS_MAX + (KAFKA_SECONDS if KAFKA_IDS else 0)

    def all_troubles(self) -> list[Callable[[], None]]:
        """As `Chaos`."""
        return [
            self.kill,
            self.pause,
            self.part_from_zookeeper,
            self.part_from_brokers,
            self.isolate,
            self.zookeeper_restart,
            self.zookeeper_outage,
            self.two_at_once,
            *self.disk_troubles(),
        ]

    def victim(self) -> int:
        """Every other time the controller, which hurts most."""
        if self.random.random() < 0.5:
            controller: int = self.admin.list_topics(timeout=30).controller_id
            if controller in BROKER_IDS:
                return controller
        return self.random.choice(BROKER_IDS)

    def silently(self) -> bool:
        return self.random.random() < 0.5

    def disk_troubles(self) -> list[Callable[[], None]]:
        """All in a long run; one, by the seed, in a short one."""
        faults = list(FAULTS) if SECONDS else [FAULTS[SEED % len(FAULTS)]]
        return [partial(self.disk, fault) for fault in faults]

    def disk(self, fault: str) -> None:
        victims = [each for each in BROKER_IDS if each not in KAFKA_IDS]
        self.cluster.fail_disk(self.random.choice(victims), fault)
        time.sleep(TROUBLE_SECONDS)

    def kill(self) -> None:
        self.cluster.kill(self.victim())
        time.sleep(TROUBLE_SECONDS)

    def pause(self) -> None:
        self.cluster.pause(self.victim())
        time.sleep(TROUBLE_SECONDS)

    def part_from_zookeeper(self) -> None:
        self.cluster.part_from_zookeeper(self.victim(), self.silently())
        time.sleep(TROUBLE_SECONDS)

    def part_from_brokers(self) -> None:
        self.cluster.part_from_brokers(self.victim(), self.silently())
        time.sleep(TROUBLE_SECONDS)

    def isolate(self) -> None:
        self.cluster.isolate(self.victim(), self.silently())
        time.sleep(TROUBLE_SECONDS)

    def zookeeper_restart(self) -> None:
        self.cluster.zookeeper.restart()

    def zookeeper_outage(self) -> None:
        """Clients continue writing and reading while there is no ZooKeeper."""
        self.cluster.zookeeper.stop()
        time.sleep(LONG_OUTAGE_SECONDS if SECONDS else TROUBLE_SECONDS)
        self.wait_for_progress("no progress without ZooKeeper")
        self.cluster.zookeeper.start()

    def two_at_once(self) -> None:
        """Too much for a cluster of three: it may stand still, but it must not lose anything."""
        self.watch.is_bounded = False
        first, second = self.random.sample(BROKER_IDS, 2)
        self.cluster.isolate(first, self.silently())
        time.sleep(self.random.uniform(0, TROUBLE_SECONDS))
        if self.random.random() < 0.5:
            self.cluster.kill(second)
        else:
            self.cluster.pause(second)
        if self.random.random() < 0.3:
            self.cluster.zookeeper.restart()
        time.sleep(self.random.uniform(0, TROUBLE_SECONDS))


def test_nothing_is_lost_whatever_happens(tmp_path: Path) -> None:
    print(f"\nchaos with seed {SEED}")
    with start_chaos_cluster(tmp_path, KAFKA_IDS) as cluster:
        try:
            BrokersChaos(cluster, SEED).run(SECONDS)
        except BaseException:
            print(cluster.story())
            raise
