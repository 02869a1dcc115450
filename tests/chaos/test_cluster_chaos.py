"""What must hold while everything goes wrong, as clients see it.

Two minutes with one seed in every run. For more:

    OTTLA_CHAOS_SECONDS=1200 OTTLA_CHAOS_SEED=7 python -m pytest -s tests/chaos
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.chaos_clients import PARTITIONS, TOPIC, LeaderWatch, Reader, Writer
from tests.doubles.chaos_cluster import (
    BROKER_IDS,
    SESSION_TIMEOUT_MS,
    ChaosCluster,
    start_chaos_cluster,
)
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.zookeeper

SECONDS = float(os.environ.get("OTTLA_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("OTTLA_CHAOS_SEED", "1"))

# Past the session time-out, so that the cluster has to do without.
TROUBLE_SECONDS = SESSION_TIMEOUT_MS / 1000 + 2
LONG_OUTAGE_SECONDS = 60.0
REST_SECONDS = 120.0
LEADERLESS_SECONDS_MAX = SESSION_TIMEOUT_MS / 1000 + 5


class Chaos:
    """One run: trouble after trouble, each followed by a rest in which everything is checked."""

    def __init__(self, cluster: ChaosCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        # The records have no times, so they are old enough to be deleted when a long run comes to
        # the first look at retention, on each broker at a time of its own.
        kept = NewTopic(TOPIC, PARTITIONS, 3, config={"retention.ms": "-1"})
        self.admin.create_topics([kept])[TOPIC].result(60)
        self.writers = [Writer(cluster.bootstrap, each) for each in range(PARTITIONS)]
        self.reader = Reader(cluster.bootstrap)
        self.watch = LeaderWatch(cluster)
        self.watchers = (*self.writers, self.reader, self.watch)
        self.troubles: list[Callable[[], None]] = [
            self.kill,
            self.pause,
            self.part_from_zookeeper,
            self.part_from_brokers,
            self.isolate,
            self.zookeeper_restart,
            self.zookeeper_outage,
            self.two_at_once,
        ]

    # -- troubles -------------------------------------------------------------------------------

    def victim(self) -> int:
        """Every other time the controller, which hurts most."""
        if self.random.random() < 0.5:
            controller: int = self.admin.list_topics(timeout=30).controller_id
            if controller in BROKER_IDS:
                return controller
        return self.random.choice(BROKER_IDS)

    def silently(self) -> bool:
        return self.random.random() < 0.5

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

    # -- rest -----------------------------------------------------------------------------------

    def wait_for_progress(self, what: str) -> None:
        """Returns when every partition was written to and read from after this call."""
        for counts in (self.written, self.reader.counts):
            before = counts()
            eventually(
                lambda before=before, counts=counts: all(  # type: ignore[misc]
                    new > old for new, old in zip(counts(), before, strict=True)
                ),
                what,
                seconds=REST_SECONDS,
            )

    def written(self) -> list[int]:
        return [len(writer.acknowledged) for writer in self.writers]

    def all_in_sync(self) -> bool:
        partitions = self.admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
        return len(partitions) == PARTITIONS and all(
            len(each.isrs) == len(BROKER_IDS) for each in partitions.values()
        )

    def rest(self) -> None:
        self.cluster.heal()
        eventually(self.all_in_sync, "not all replicas are in sync", seconds=REST_SECONDS)
        self.wait_for_progress("no progress after the trouble")
        self.watch.is_bounded = True

    def check(self) -> None:
        complaints = [each for watcher in self.watchers for each in watcher.complaints]
        assert complaints == []
        assert self.watch.longest_seconds <= LEADERLESS_SECONDS_MAX

    # -- the run --------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        began = time.monotonic()
        for watcher in self.watchers:
            watcher.start()
        try:
            # Producers have their ids, which they could not get without ZooKeeper.
            self.wait_for_progress("nothing is written before the first trouble")
            while True:
                for trouble in self.random.sample(self.troubles, len(self.troubles)):
                    at = time.monotonic() - began
                    print(f"{at:6.1f} s: {trouble.__name__}", flush=True)
                    trouble()
                    self.rest()
                    self.check()
                if time.monotonic() - began >= seconds:
                    break
        finally:
            for watcher in self.watchers:
                watcher.stop()
        self.finish()

    def finish(self) -> None:
        self.check()
        eventually(
            lambda: self.cluster.logs_are_identical(TOPIC, PARTITIONS), "the replicas differ"
        )
        again = Reader(self.cluster.bootstrap)
        again.start()
        try:
            written = self.written()
            eventually(lambda: again.complaints != [] or again.counts() == written, "lost records")
        finally:
            again.stop()
        assert again.complaints == []
        for writer, offsets, seen in zip(
            self.writers, again.offsets, self.reader.offsets, strict=True
        ):
            # The number of a record is its place: in order, each once, where it was promised.
            assert writer.acknowledged == list(enumerate(offsets))
            assert seen == offsets[: len(seen)]


def test_nothing_is_lost_whatever_happens(tmp_path: Path) -> None:
    print(f"\nchaos with seed {SEED}")
    with start_chaos_cluster(tmp_path) as cluster:
        try:
            Chaos(cluster, SEED).run(SECONDS)
        except BaseException:
            print(cluster.story())
            raise
