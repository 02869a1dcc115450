"""Clients that run while brokers are replaced: each record has to be there, and read, once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.leaving.nodes import Nodes
from tests.compat.leaving.state import read_all
from tests.doubles.eventually import eventually

TOPIC, GROUP = "stream", "followers"
PARTITIONS = 6
MEMBERS = 2
# A steady load: what matters is that some requests are under way at each step.
SECONDS_BETWEEN_RECORDS = 0.02
# A record may wait for a leader as long as a broker starts on a busy machine.
DELIVERY_TIMEOUT_MS = 300_000

# A commit that got one of these is repeated; librdkafka leaves that to its users.
_COORDINATOR_CHANGES = {
    *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE),
    *(KafkaError.NOT_COORDINATOR, KafkaError.REQUEST_TIMED_OUT),
    *(KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._WAIT_COORD),
}


class Clients:
    """An idempotent producer with acks=all and the members of a classic group, in threads."""

    def __init__(self, nodes: Nodes) -> None:
        self._bootstrap = nodes.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self._bootstrap})
        settings = {"min.insync.replicas": str(min(2, nodes.replicas))}
        topic = NewTopic(TOPIC, PARTITIONS, nodes.replicas, config=settings)
        self.admin.create_topics([topic])[TOPIC].result(60)
        self.produced = 0
        self.failures: list[str] = []
        self.read: Counter[int] = Counter()
        self.longest_pause_seconds = 0.0
        self._lock = threading.Lock()
        self._stops_producing, self._stops_reading = threading.Event(), threading.Event()
        self._producing = threading.Thread(target=self._guarded, args=(self._produce,), daemon=True)
        self._reading = [
            threading.Thread(target=self._guarded, args=(self._read,), daemon=True)
            for _ in range(MEMBERS)
        ]

    def __enter__(self) -> Clients:
        for thread in (self._producing, *self._reading):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops_producing.set()
        self._stops_reading.set()
        for thread in (self._producing, *self._reading):
            thread.join(60)

    def finish(self) -> str:
        """Stop them; fail unless each record is in the topic, and was read, exactly once."""
        self._stops_producing.set()
        self._producing.join(DELIVERY_TIMEOUT_MS / 1000)
        assert not self._producing.is_alive(), "the producer has not delivered all records"
        assert not self.failures, self.failures[:5]
        eventually(
            lambda: len(self.read) == self.produced or self.failures,
            lambda: f"{len(self.read)} of {self.produced} records were read",
        )
        self._stops_reading.set()
        for thread in self._reading:
            thread.join(60)
        assert not self.failures, self.failures[:5]
        once = Counter(range(self.produced))
        rows = read_all(self.admin, self._bootstrap, TOPIC)
        stored = Counter(int(value or b"-1") for _, _, _, value in rows)
        assert stored == once, f"stored: {_difference(stored, once)}"
        assert self.read == once, f"read: {_difference(self.read, once)}"
        return (
            f"{self.produced} records are stored and were read once; the longest pause of an "
            f"acknowledgement was {self.longest_pause_seconds:.1f} s"
        )

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as problem:
            self.failures.append(f"{type(problem).__name__}: {problem}")

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "log_level": 0,
            }
        )
        acknowledged = time.monotonic()

        def on_delivery(error: object, _message: object) -> None:
            nonlocal acknowledged
            if error is not None:
                self.failures.append(f"not delivered: {error}")
            now = time.monotonic()
            self.longest_pause_seconds = max(self.longest_pause_seconds, now - acknowledged)
            acknowledged = now

        while not self._stops_producing.is_set() and not self.failures:
            producer.produce(TOPIC, str(self.produced), on_delivery=on_delivery)
            self.produced += 1
            producer.poll(SECONDS_BETWEEN_RECORDS)
        producer.flush(DELIVERY_TIMEOUT_MS / 1000)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "group.protocol": "classic",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not self._stops_reading.is_set() and not self.failures:
                messages = [each for each in consumer.consume(500, 0.2) if not each.error()]
                if messages:
                    with self._lock:
                        self.read.update(int(each.value()) for each in messages)
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        """Commit, again while the coordinator changes."""

        def is_committed() -> bool:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as problem:
                if problem.args[0].code() not in _COORDINATOR_CHANGES:
                    raise
                return False
            return True

        eventually(is_committed, "the offsets are not committed", seconds=120, pause_seconds=0.1)


def _difference(found: Counter[int], expected: Counter[int]) -> str:
    missing, more = sorted((expected - found).elements()), sorted((found - expected).elements())
    return f"{len(missing)} are missing {missing[:10]}, {len(more)} are too many {more[:10]}"
