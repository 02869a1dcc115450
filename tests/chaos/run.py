"""A run of chaos: trouble after trouble with clients that continue, and what must hold then.

What is troubled is a cluster of brokers (`test_cluster_chaos.py`) or of machines with several
workers (`test_machines_chaos.py`). The oracle of the simulation
(tests/simulation/cluster/history.py) checks what the clients did.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.doubles.chaos_clients import PARTITIONS, TOPIC, LeaderWatch, Reader, Troubled, Writer
from tests.doubles.chaos_cluster import SESSION_TIMEOUT_MS
from tests.doubles.chaos_transactions import (
    TRANSACTION_PARTITIONS,
    TRANSACTIONS_TOPIC,
    CommittedReader,
    TransactionalWriter,
)
from tests.doubles.eventually import eventually
from tests.doubles.kept_records import batches_of, kept_records
from tests.simulation.cluster.history import History

# Past the session time-out, so that the cluster has to do without.
TROUBLE_SECONDS = SESSION_TIMEOUT_MS / 1000 + 2
REST_SECONDS = 120.0
# An election takes a second; the rest is for a machine with other work.
LEADERLESS_SECONDS_MAX = SESSION_TIMEOUT_MS / 1000 + 20
TRANSACTIONAL_WRITERS = 2


class Chaos(ABC):
    """One run: trouble after trouble, each followed by a rest in which everything is checked."""

    leaderless_seconds_max = LEADERLESS_SECONDS_MAX

    def __init__(self, cluster: Troubled, seed: int) -> None:
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
        self.troubles = self.all_troubles()

    @abstractmethod
    def all_troubles(self) -> list[Callable[[], None]]:
        """Each begins one; `heal` of the cluster ends it."""

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
            and all(
                len(each.isrs) == len(each.replicas) for each in known[topic].partitions.values()
            )
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
        assert self.watch.longest_seconds <= self.leaderless_seconds_max

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
