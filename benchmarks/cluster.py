"""The measurements of `make bench-cluster`: three brokers of one kind, and what is done to them."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Producer
from kazoo.client import KazooClient

from benchmarks import clients, machine, targets, throughput
from benchmarks.bench import delete_written
from benchmarks.kept import Figures
from ottla.protocol.client.blocking_connection import BlockingConnection, monotonic_ms
from ottla.protocol.client.cluster import Address
from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.doubles.zookeeper_process import start_zookeeper

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
BROKER_IDS = (1, 2, 3)
# A broker that was killed is noticed after this; the figures begin when it was.
SESSION_TIMEOUT_MS = 12_000
DEADLINE_S = 120.0
# Bytes of a record, and how many are produced in a round: some seconds, so that connecting counts
# little, and few enough for the page cache to have room for what both clusters write.
SIZES = {100: 2_000_000, 1_000: 400_000}
SINGLE_RECORDS = 500
SINGLE_TOPIC = "replicated-single"

SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.enable": "true",
    "log.cleaner.dedupe.buffer.size": "8388608",
}


class Cluster:
    """Running brokers of one kind, and requests to each of them."""

    def __init__(
        self, kind: str, directory: Path, zookeeper: str, broker_ids: tuple[int, ...] = BROKER_IDS
    ) -> None:
        self.kind = kind
        self.tree = KazooClient(zookeeper)
        self.brokers: dict[int, targets.Target] = {}
        for broker_id in broker_ids:
            folder = directory / f"{kind}-{broker_id}"
            settings = {**SETTINGS, "broker.id": str(broker_id), "zookeeper.connect": zookeeper}
            self.brokers[broker_id] = (
                targets.Ottla(folder, settings)
                if kind == "ottla"
                else targets.Kafka(folder, settings, zookeeper)
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        self.tree.start()
        for broker in self.brokers.values():
            broker.launch()
        count = len(self.brokers)
        self.wait_for_metadata(lambda found: len(found.brokers) == count, tuple(self.brokers))

    def stop(self) -> None:
        for broker in self.brokers.values():
            if broker.process is not None and broker.process.is_running():
                broker.process.kill()
            broker.stop()
        self.tree.stop()
        self.tree.close()

    def processor_seconds(self) -> float:
        return sum(broker.processor_seconds() for broker in self.brokers.values())

    def call(self, broker_id: int, request: Message) -> Message | None:
        """One broker's response, None without a response."""
        address = Address("127.0.0.1", self.brokers[broker_id].port)
        connection = BlockingConnection(address, client_id="bench")
        deadline_ms = monotonic_ms() + int(DEADLINE_S * 1000)
        try:
            connection.connect(deadline_ms)
            return connection.request(request, deadline_ms)
        except ClientError:
            return None
        finally:
            connection.close()

    def wait_for_metadata(
        self,
        condition: Callable[[MetadataResponse], bool],
        broker_ids: tuple[int, ...] = BROKER_IDS,
    ) -> float:
        """Returns the time at which the metadata of every broker has what is waited for."""
        deadline = time.perf_counter() + DEADLINE_S
        for broker_id in broker_ids:
            while True:
                response = self.call(broker_id, MetadataRequest(topics=None))
                if isinstance(response, MetadataResponse) and condition(response):
                    break
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"{self.kind}: broker {broker_id} is not where it should be")
                time.sleep(0.02)
        return time.perf_counter()

    def controller(self) -> int:
        response = self.call(next(iter(self.brokers)), MetadataRequest(topics=[]))
        assert isinstance(response, MetadataResponse)
        return response.controller_id

    def create(self, topic: str, replicas: list[tuple[int, ...]]) -> None:
        """Creates a topic with these replicas, the first of each leading."""
        rows = [CreatableReplicaAssignment(n, list(ids)) for n, ids in enumerate(replicas)]
        request = CreateTopicsRequest(
            topics=[CreatableTopic(topic, -1, -1, rows)], timeout_ms=int(DEADLINE_S * 1000)
        )
        deadline = time.perf_counter() + DEADLINE_S
        while True:
            response = self.call(self.controller(), request)
            assert isinstance(response, CreateTopicsResponse), f"{topic} was not created"
            code = response.topics[0].error_code
            if code != ErrorCode.NOT_CONTROLLER or time.perf_counter() > deadline:
                break
            time.sleep(0.02)
        assert code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT), response

    def wait_until_gone(self, path: str) -> float:
        """Returns the time at which a znode of a killed broker was seen to be gone."""
        deadline = time.perf_counter() + DEADLINE_S
        while self.tree.exists(path):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{self.kind}: {path} is still there")
            time.sleep(0.005)
        return time.perf_counter()

    def kill(self, broker_id: int) -> None:
        process = self.brokers[broker_id].process
        assert process is not None
        process.kill()


def led_by(response: MetadataResponse, topic: str) -> list[int]:
    return [
        row.leader_id for each in response.topics if each.name == topic for row in each.partitions
    ]


def create_replicated(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, [BROKER_IDS, (2, 3, 1), (3, 1, 2)] * 2)
    cluster.wait_for_metadata(lambda response: min(led_by(response, topic), default=-1) >= 0)


def librdkafka_produce(cluster: Cluster, topic: str, records: int, size: int) -> float:
    options = {"acks": "all", "enable.idempotence": "true"}
    return clients.produce_records_per_s(cluster.bootstrap, topic, records, size, options)


def java_produce(cluster: Cluster, topic: str, records: int, size: int) -> float:
    return throughput.java_records_per_s(cluster.bootstrap, topic, records, size, ["acks=all"])


def replicated_produce(cluster: Cluster, scale: float) -> Figures:
    """One round, in topics of its own, which are deleted after it."""
    found: Figures = {}
    for client, produce in (("librdkafka", librdkafka_produce), ("Java", java_produce)):
        for size, count in SIZES.items():
            topic = f"replicated-{client}-{size}"
            create_replicated(cluster, topic)
            records = int(count * scale)
            label = f"{client}, acks=all, 3 replicas, {size} B"
            before, begun = cluster.processor_seconds(), time.perf_counter()
            client_before = machine.client_seconds()
            found[f"{label}: records/s in a cluster"] = produce(cluster, topic, records, size)
            client_used = machine.client_seconds() - client_before
            used, taken = cluster.processor_seconds() - before, time.perf_counter() - begun
            found[f"{label}: CPU s per GB, all brokers"] = used / (records * size / 1e9)
            found[f"{label}: processors used by the client"] = client_used / taken
    create_replicated(cluster, SINGLE_TOPIC)
    found["acks=all, one record at a time, p50: ms"] = one_at_a_time(
        cluster, int(SINGLE_RECORDS * scale)
    )
    delete_written(list(cluster.brokers.values()))
    return found


def one_at_a_time(cluster: Cluster, count: int) -> float:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        producer.produce(SINGLE_TOPIC, b"x" * 100, partition=0)
        producer.flush(DEADLINE_S)
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


def create_and_fail_over(cluster: Cluster) -> Figures:
    """1,000 partitions with three replicas, all led by one broker that is then killed."""
    controller = cluster.controller()
    victim = next(each for each in BROKER_IDS if each != controller)
    others = tuple(each for each in BROKER_IDS if each != victim)
    cluster.create("warm", [BROKER_IDS] * 1000)
    cluster.wait_for_metadata(lambda response: led_by(response, "warm") == [BROKER_IDS[0]] * 1000)
    begun = time.perf_counter()
    cluster.create("many", [(victim, *others)] * 1000)
    seen = cluster.wait_for_metadata(lambda response: led_by(response, "many") == [victim] * 1000)
    found = {"create 1,000 partitions until the metadata of all brokers has them: s": seen - begun}
    time.sleep(2)  # followers get to copy
    cluster.kill(victim)
    gone = cluster.wait_until_gone(f"/brokers/ids/{victim}")
    seen = cluster.wait_for_metadata(
        lambda response: set(led_by(response, "many")) <= set(others), others
    )
    found["fail 1,000 partitions over, from expiry: s"] = seen - gone
    return found


def controller_start(cluster: Cluster) -> Figures:
    """5,000 partitions with two replicas; the controller is killed."""
    for number in range(5):
        pairs = [(1, 2), (2, 3), (3, 1)]
        cluster.create(f"topic-{number}", [pairs[each % 3] for each in range(1000)])
    total = 5000
    cluster.wait_for_metadata(
        lambda response: sum(len(t.partitions) for t in response.topics) >= total
    )
    time.sleep(3)
    victim = cluster.controller()
    others = tuple(each for each in BROKER_IDS if each != victim)
    cluster.kill(victim)
    gone = cluster.wait_until_gone(f"/brokers/ids/{victim}")

    def is_over(response: MetadataResponse) -> bool:
        return response.controller_id in others and all(
            row.leader_id in others for topic in response.topics for row in topic.partitions
        )

    seen = cluster.wait_for_metadata(is_over, others)
    return {"controller start with 5,000 partitions, and 1,667 failed over: s": seen - gone}


def controlled_shutdown(cluster: Cluster) -> Figures:
    """A broker that leads 300 of 900 partitions is stopped."""
    cluster.create("led", [BROKER_IDS, (2, 3, 1), (3, 1, 2)] * 300)
    cluster.wait_for_metadata(lambda response: sorted(set(led_by(response, "led"))) == [1, 2, 3])
    time.sleep(2)
    controller = cluster.controller()
    victim = next(each for each in BROKER_IDS if each != controller)
    others = tuple(each for each in BROKER_IDS if each != victim)
    process = cluster.brokers[victim].process
    assert process is not None
    begun = time.perf_counter()
    process.terminate()
    seen = cluster.wait_for_metadata(
        lambda response: set(led_by(response, "led")) == set(others), others
    )
    cluster.brokers[victim].stop()
    ended = time.perf_counter()
    return {
        "controlled shutdown: 300 leaders moved: s": seen - begun,
        "controlled shutdown: process ended: s": ended - begun,
    }


WORKS: dict[str, Callable[[Cluster], Figures]] = {
    "failover": create_and_fail_over,
    "controller": controller_start,
    "shutdown": controlled_shutdown,
}


@contextmanager
def running(kind: str) -> Iterator[Cluster]:
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE))
    try:
        with ExitStack() as stack:
            zookeeper = stack.enter_context(start_zookeeper(folder))
            cluster = Cluster(kind, folder, zookeeper.connect)
            stack.callback(cluster.stop)
            cluster.start()
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)
