"""librdkafka's consumers when a quarter of the heartbeat responses is lost, beside Kafka 4.3.1.

    python -m tests.compat.lost_heartbeats [ottla|kafka]

Members of the consumer protocol join and leave while records with the time of their production are
delivered. Prints how late the latest of them was.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.registry import ApiKey
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.kraft_kafka import start_kraft
from tests.doubles.losing_proxy import LosingProxy

TOPIC, GROUP = "timed", "late"
PARTITIONS = 6
LOST = 0.25
SECONDS = 60.0
SECONDS_BETWEEN_MEMBERS = 8.0
SECONDS_BETWEEN_RECORDS = 0.02


class Delays(NamedTuple):
    """Seconds from the production of a record to its first delivery."""

    records: int
    repeated: int
    longest: float
    over_a_second: int
    lost_responses: int


class _Members:
    """Consumers in threads, and what they were given."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.delays: dict[str, float] = {}
        self.repeated = 0
        self._lock = threading.Lock()
        self._stops: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def join(self) -> None:
        stops = threading.Event()
        thread = threading.Thread(target=self._consume, args=(stops,), daemon=True)
        self._stops.append(stops)
        self._threads.append(thread)
        thread.start()

    def replace_oldest(self) -> None:
        """One leaves, then another one joins, in this order on each broker."""
        self._stops.pop(0).set()
        self._threads.pop(0).join(60)
        self.join()

    def end(self) -> None:
        for stops in self._stops:
            stops.set()
        for thread in self._threads:
            thread.join(60)

    def _consume(self, stops: threading.Event) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        while not stops.is_set():
            for message in consumer.consume(100, 0.1):
                if message.error():
                    continue
                value = (message.value() or b"").decode()
                delay = time.time() - float(value.partition(" ")[2])
                with self._lock:
                    self.repeated += value in self.delays
                    self.delays.setdefault(value, delay)
        consumer.close()


def measure(bootstrap: str, proxy: LosingProxy, seconds: float = SECONDS) -> Delays:
    """Deliver records for `seconds`, all of which have to arrive."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    members = _Members(bootstrap)
    members.join()
    members.join()
    count, began = 0, time.monotonic()
    changed = began
    # The first members join, for which nothing is measured.
    while time.monotonic() - began < 10:
        producer.poll(0.1)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        producer.produce(TOPIC, f"{count} {time.time()}", partition=count % PARTITIONS)
        count += 1
        producer.poll(SECONDS_BETWEEN_RECORDS)
        if time.monotonic() - changed > SECONDS_BETWEEN_MEMBERS:
            changed = time.monotonic()
            members.replace_oldest()
    assert producer.flush(60) == 0
    eventually(
        lambda: len(members.delays) == count,
        lambda: f"{len(members.delays)} of {count} records were delivered",
        seconds=120,
    )
    members.end()
    late = members.delays.values()
    over = sum(each > 1 for each in late)
    return Delays(count, members.repeated, max(late), over, proxy.lost)


@contextmanager
def lossy(seed: int = 1) -> Iterator[LosingProxy]:
    """A proxy that loses a quarter of the heartbeat responses."""
    chance = random.Random(seed)
    proxy = LosingProxy(ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda: chance.random() < LOST)
    try:
        yield proxy
    finally:
        proxy.close()


def on_ottla(folder: Path) -> Delays:
    with (
        lossy() as proxy,
        start_broker(folder, advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}") as broker,
    ):
        proxy.broker_port = broker.port
        return measure(f"127.0.0.1:{proxy.port}", proxy)


def on_kafka(folder: Path) -> Delays:
    with (
        lossy() as proxy,
        start_kraft(
            folder,
            advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}",
            group_consumer_assignment_interval_ms=0,
        ) as bootstrap,
    ):
        proxy.broker_port = int(bootstrap.rpartition(":")[2])
        return measure(f"127.0.0.1:{proxy.port}", proxy)


BROKERS = {"ottla": on_ottla, "kafka": on_kafka}


def main() -> None:
    for name in sys.argv[1:] or BROKERS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {BROKERS[name](Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
