"""What must hold while everything goes wrong, as clients see it.

Two minutes with one seed in every run. For more:

    OTTLA_CHAOS_SECONDS=1200 OTTLA_CHAOS_SEED=7 python -m pytest -s tests/chaos

With OTTLA_CHAOS_KAFKA=1 the first broker is Apache Kafka 3.9.1. The oracle of the simulation
(tests/simulation/cluster/history.py) checks what the clients did.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.doubles.chaos_clients import PARTITIONS, TOPIC, LeaderWatch, Reader, Writer
from tests.doubles.chaos_cluster import (
    BROKER_IDS,
    SESSION_TIMEOUT_MS,
    ChaosCluster,
    start_chaos_cluster,
)
from tests.doubles.chaos_transactions import (
    TRANSACTION_PARTITIONS,
    TRANSACTIONS_TOPIC,
    CommittedReader,
    TransactionalWriter,
)
from tests.doubles.eventually import eventually
from tests.doubles.faulty_disk import FAULTS
from tests.doubles.kept_records import batches_of, kept_records
from tests.simulation.cluster.history import History

pytestmark = pytest.mark.zookeeper

SECONDS = float(os.environ.get("OTTLA_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("OTTLA_CHAOS_SEED", "1"))
KAFKA_IDS = (1,) if os.environ.get("OTTLA_CHAOS_KAFKA") else ()

# Past the session time-out, so that the cluster has to do without.
TROUBLE_SECONDS = SESSION_TIMEOUT_MS / 1000 + 2
LONG_OUTAGE_SECONDS = 60.0
REST_SECONDS = 120.0
# An election takes a second; the rest is for a machine with other work.
LEADERLESS_SECONDS_MAX = SESSION_TIMEOUT_MS / 1000 + 20
TRANSACTIONAL_WRITERS = 2
# A broker of Kafka that was killed takes seconds to start, and elects more slowly.
KAFKA_SECONDS = 10


class Chaos:
    """One run: trouble after trouble, each followed by a rest in which everything is checked."""

    def __init__(self, cluster: ChaosCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        # The records have no times, so they are old enough to be deleted when a long run comes to
        # the first look at retention, on each broker at a time of its own.
        topics = {TOPIC: PARTITIONS, TRANSACTIONS_TOPIC: TRANSACTION_PARTITIONS}
        for topic, partitions in topics.items():
            kept = NewTopic(topic, partitions, 3, config={"retention.ms": "-1"})
            self.admin.create_topics([kept])[topic].result(60)
        self.topics = topics
        self.history = History()
        self.writers = [Writer(cluster.bootstrap, each, self.history) for each in range(PARTITIONS)]
        self.transactions = [
            TransactionalWriter(cluster.bootstrap, each, self.history)
            for each in range(TRANSACTIONAL_WRITERS)
        ]
        self.reader = Reader(cluster.bootstrap)
        self.watch = LeaderWatch(cluster)
        self.watchers = (
            *self.writers,
            *self.transactions,
            self.reader,
            CommittedReader(cluster.bootstrap, self.history),
            self.watch,
        )
        self.troubles: list[Callable[[], None]] = [
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

    # -- rest -----------------------------------------------------------------------------------

    def wait_for_progress(self, what: str) -> None:
        """Returns when every partition was written to and read from after this call."""
        for counts in (self.written, self.reader.counts, self.committed):
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

    def committed(self) -> list[int]:
        return [writer.committed for writer in self.transactions]

    def all_in_sync(self) -> bool:
        known = self.admin.list_topics(timeout=30).topics
        return all(
            topic in known
            and len(known[topic].partitions) == count
            and all(len(each.isrs) == len(BROKER_IDS) for each in known[topic].partitions.values())
            for topic, count in self.topics.items()
        )

    def rest(self) -> None:
        self.cluster.heal()
        eventually(self.all_in_sync, "not all replicas are in sync", seconds=REST_SECONDS)
        self.wait_for_progress("no progress after the trouble")
        self.watch.is_bounded = True

    def check(self) -> None:
        complaints = [each for watcher in self.watchers for each in watcher.complaints]
        assert complaints == []
        allowed = LEADERLESS_SECONDS_MAX + (KAFKA_SECONDS if KAFKA_IDS else 0)
        assert self.watch.longest_seconds <= allowed

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
                    print(f"{at:6.1f} s: {_name(trouble)}", flush=True)
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
        for topic, partitions in self.topics.items():
            eventually(
                lambda topic=topic, partitions=partitions: self.cluster.logs_are_identical(  # type: ignore[misc]
                    topic, partitions
                ),
                f"the replicas of {topic} differ",
            )
        self.check_histories()
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

    def check_histories(self) -> None:
        """What is in the logs, against what the clients know."""
        eventually(self.no_transaction_is_open, "a transaction stays open", seconds=REST_SECONDS)
        complaints: list[str] = []
        visible: set[bytes] = set()
        for topic, partitions in self.topics.items():
            for index in range(partitions):
                kept = kept_records(batches_of(self.cluster.replica(topic, index)))
                visible |= {each.value for each in kept if each.visible}
                complaints += self.history.check(topic, index, kept)
        complaints += self.history.check_atomic(visible)
        outcomes = Counter(each.outcome for each in self.history.transactions)
        print(
            f"{sum(self.written())} records, transactions: {dict(outcomes)}, longest without a "
            f"leader {self.watch.longest_seconds:.1f} s",
            flush=True,
        )
        assert complaints == []

    def no_transaction_is_open(self) -> bool:
        """The last stable offset is the high watermark everywhere."""
        wanted = {
            TopicPartition(TRANSACTIONS_TOPIC, each): OffsetSpec.latest()
            for each in range(TRANSACTION_PARTITIONS)
        }
        ends = []
        for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
            found = self.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=30)
            try:
                ends.append([each.result(60).offset for each in found.values()])
            except KafkaException as error:
                # Leaders still change, and librdkafka's admin client sends the epoch it knows.
                if error.args[0].code() != KafkaError.FENCED_LEADER_EPOCH:
                    raise
                self.admin.list_topics(timeout=30)  # it does not refresh its metadata by itself
                return False
        return ends[0] == ends[1]


def _name(trouble: Callable[[], None]) -> str:
    if isinstance(trouble, partial):
        return f"{trouble.func.__name__} {trouble.args[0]}"
    return trouble.__name__


def test_nothing_is_lost_whatever_happens(tmp_path: Path) -> None:
    print(f"\nchaos with seed {SEED}")
    with start_chaos_cluster(tmp_path, KAFKA_IDS) as cluster:
        try:
            Chaos(cluster, SEED).run(SECONDS)
        except BaseException:
            print(cluster.story())
            raise
