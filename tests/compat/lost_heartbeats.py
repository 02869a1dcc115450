"""librdkafka's consumers when a quarter of the heartbeat responses is lost, beside Kafka 4.3.1.

    python -m tests.compat.lost_heartbeats [--seed N] [--seconds N] [--pause N] [ottla|kafka]

Members of the consumer protocol join and leave while records with the time of their production are
delivered. Prints how late the latest of them was. A seed loses the same heartbeats of each member
on both brokers.

librdkafka repeats a join at once, and another heartbeat whose response was lost after the heartbeat
interval of 5 s. Partitions that the response assigned stand still meanwhile. This is rare while a
member joins as soon as another one has left. With `--pause`, the seconds in between, the other
member is assigned all partitions, and has to revoke some for the new one. So the time in which a
member waits after a loss is subtracted in `longest_beyond_waits`, which keeps the pause and up to
one regular interval until a member learns what was revoked for it. `longest_response` is what the
broker itself takes. With `--seed 3 --pause 2` the latest record came after 13.4 s on Ottla and
10.1 s on Kafka 4.3.1, 2.2 s beyond the waits on both.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.headers import decode_request
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.registry import ApiKey
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.kraft_kafka import start_kraft
from tests.doubles.losing_proxy import LosingProxy, Request

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
    longest_beyond_waits: float
    over_a_second: int
    lost_responses: int
    longest_response: float


class _Losses:
    """Loses a quarter of the responses of each member, and keeps when members waited after one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers: dict[str, int] = {}
        self._heartbeats: Counter[str] = Counter()
        self._lost_at: dict[str, float] = {}
        #: Intervals from a loss to the next heartbeat of the member.
        self.waits: list[tuple[float, float]] = []
        self.longest_response = 0.0

    def loses(self, request: Request) -> bool:
        heartbeat = decode_request(memoryview(request.frame)[4:])[1]
        assert isinstance(heartbeat, ConsumerGroupHeartbeatRequest)
        member, now = heartbeat.member_id, time.monotonic()
        self.longest_response = max(self.longest_response, now - request.arrived)
        if (began := self._lost_at.pop(member, None)) is not None:
            self.waits.append((began, request.arrived))
        number = self._numbers.setdefault(member, len(self._numbers))
        self._heartbeats[member] += 1
        chance = random.Random(f"{self._seed} {number} {self._heartbeats[member]}")
        if chance.random() >= LOST:
            return False
        self._lost_at[member] = now
        return True

    def waited(self, begin: float, end: float) -> float:
        """Seconds between two times in which at least one member waited."""
        total, reached = 0.0, begin
        for wait_began, wait_ended in sorted(self.waits):
            first, last = max(wait_began, reached), min(wait_ended, end)
            if first < last:
                total, reached = total + last - first, last
        return total


class _Members:
    """Consumers in threads, and what they were given."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.deliveries: dict[str, float] = {}
        self.repeated = 0
        self.assigned: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._stops: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def join(self) -> None:
        stops = threading.Event()
        thread = threading.Thread(target=self._consume, args=(stops,), daemon=True)
        self._stops.append(stops)
        self._threads.append(thread)
        thread.start()

    def end_oldest(self) -> None:
        """Returns when it has left."""
        self._stops.pop(0).set()
        self._threads.pop(0).join(60)

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
        consumer.subscribe([TOPIC], on_assign=self._on_assign)
        while not stops.is_set():
            for message in consumer.consume(100, 0.1):
                if message.error():
                    continue
                value = (message.value() or b"").decode()
                with self._lock:
                    self.repeated += value in self.deliveries
                    self.deliveries.setdefault(value, time.monotonic())
        consumer.close()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            self.assigned[threading.get_ident()] += len(partitions)


class Load(NamedTuple):
    """How long records are produced, and the time between the leave of a member and a join."""

    seconds: float = SECONDS
    pause_seconds: float = 0.0


def measure(bootstrap: str, proxy: LosingProxy, losses: _Losses, load: Load) -> Delays:
    """Deliver records, all of which have to arrive."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    members = _Members(bootstrap)
    members.join()
    members.join()
    # The first members join, for which nothing is measured.
    eventually(lambda: len(+members.assigned) == 2, lambda: members.assigned, seconds=120)
    began = changed = time.monotonic()
    produced: list[float] = []
    is_joining = False
    while time.monotonic() - began < load.seconds:
        producer.produce(TOPIC, str(len(produced)), partition=len(produced) % PARTITIONS)
        produced.append(time.monotonic())
        producer.poll(SECONDS_BETWEEN_RECORDS)
        if time.monotonic() - changed > SECONDS_BETWEEN_MEMBERS:
            changed = time.monotonic()
            members.end_oldest()
            is_joining = True
        if is_joining and time.monotonic() - changed >= load.pause_seconds:
            members.join()
            is_joining = False
    assert producer.flush(60) == 0
    eventually(
        lambda: len(members.deliveries) == len(produced),
        lambda: f"{len(members.deliveries)} of {len(produced)} records were delivered",
        seconds=120,
    )
    members.end()
    spans = [(begin, members.deliveries[str(number)]) for number, begin in enumerate(produced)]
    late = [end - begin for begin, end in spans]
    beyond = max(end - begin - losses.waited(begin, end) for begin, end in spans)
    return Delays(
        len(produced),
        members.repeated,
        round(max(late), 2),
        round(beyond, 2),
        sum(each > 1 for each in late),
        proxy.lost,
        round(losses.longest_response, 2),
    )


@contextmanager
def lossy(losses: _Losses) -> Iterator[LosingProxy]:
    """A proxy that loses a quarter of the heartbeat responses."""
    proxy = LosingProxy(ApiKey.CONSUMER_GROUP_HEARTBEAT, losses.loses)
    try:
        yield proxy
    finally:
        proxy.close()


def on_ottla(folder: Path, seed: int, load: Load) -> Delays:
    losses = _Losses(seed)
    with (
        lossy(losses) as proxy,
        start_broker(folder, advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}") as broker,
    ):
        proxy.broker_port = broker.port
        return measure(f"127.0.0.1:{proxy.port}", proxy, losses, load)


def on_kafka(folder: Path, seed: int, load: Load) -> Delays:
    losses = _Losses(seed)
    with (
        lossy(losses) as proxy,
        start_kraft(
            folder,
            advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}",
            group_consumer_assignment_interval_ms=0,
        ) as bootstrap,
    ):
        proxy.broker_port = int(bootstrap.rpartition(":")[2])
        return measure(f"127.0.0.1:{proxy.port}", proxy, losses, load)


BROKERS = {"ottla": on_ottla, "kafka": on_kafka}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("brokers", nargs="*", metavar="ottla|kafka")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--pause", type=float, default=0.0)
    chosen = parser.parse_args()
    load = Load(chosen.seconds, chosen.pause)
    for name in chosen.brokers or BROKERS:
        with tempfile.TemporaryDirectory() as folder:
            delays = BROKERS[name](Path(folder), chosen.seed, load)
            print(f"{name}, seed {chosen.seed}: {delays}", flush=True)


if __name__ == "__main__":
    main()
