"""Who looks at a cluster in trouble: a writer, a reader, and one who watches for leaders.

Each runs on a thread of its own until it is stopped. What must never happen is written down in
`complaints`; nothing is asserted on these threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from protocol.client.blocking_connection import BlockingConnection, monotonic_ms
from protocol.client.cluster import Address
from protocol.client.errors import ClientError
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.doubles.chaos_cluster import ChaosCluster

TOPIC = "chaos"
PARTITIONS = 6
# Long enough for any trouble that these tests make, so that every record is acknowledged in the
# end; short enough for a client to leave a broker that does not answer.
_CLIENT = {
    "socket.timeout.ms": 4_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,  # refused connections are what this is about
}
_MESSAGE_TIMEOUT_MS = 600_000
_JOIN_SECONDS = 60.0
_PAUSE_SECONDS = 0.02
_ASK_MS = 1_000


class Watcher:
    """A thread that repeats `_step` until it is stopped."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except Exception as error:
            self.complaints.append(f"{type(self).__name__} ended: {error!r}")
        finally:
            self._finish()

    def _step(self) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """Closes what was opened."""


class Writer(Watcher):
    """Writes 0, 1, 2, ... to every partition; an idempotent producer with acks=all."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        #: The number of each acknowledged record by partition, with its offset.
        self.acknowledged: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        self.written = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": _MESSAGE_TIMEOUT_MS,
                "retry.backoff.ms": 100,
                "linger.ms": 5,
                "error_cb": self._error,
                **_CLIENT,
            }
        )

    def counts(self) -> list[int]:
        """How many records are acknowledged in each partition."""
        return [len(each) for each in self.acknowledged]

    def _step(self) -> None:
        for partition in range(PARTITIONS):
            self._write(partition, b"%d" % self.written)
        self.written += 1
        self._producer.poll(_PAUSE_SECONDS)

    def _write(self, partition: int, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._done)
                return
            except BufferError:  # many are on their way: a partition cannot be written to
                self._producer.poll(0.1)

    def flush(self) -> int:
        """Waits until everything is acknowledged; the number of those that are not."""
        return int(self._producer.flush(_JOIN_SECONDS))

    def _done(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.complaints.append(f"a record was not written: {error}")
            return
        self.acknowledged[message.partition()].append((int(message.value()), message.offset()))

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self.complaints.append(f"the producer cannot go on: {error}")


class Reader(Watcher):
    """Reads every partition from its start; each number must follow the one before."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        #: Offsets by partition; the number of a record is its place.
        self.offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                # Whatever was read once is committed: no offset that we ask for may be gone.
                "auto.offset.reset": "error",
                **_CLIENT,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])

    def counts(self) -> list[int]:
        """How many records were read of each partition."""
        return [len(each) for each in self.offsets]

    def _step(self) -> None:
        for message in self._consumer.consume(500, 0.2):
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.complaints.append(f"the reader was lost: {error}")
        if len(self.complaints) > 20:
            raise KafkaException("enough was seen")

    def _take(self, message: Message) -> None:
        offsets = self.offsets[message.partition()]
        number = int(message.value())
        if number != len(offsets):
            self.complaints.append(
                f"partition {message.partition()}: {number} at offset {message.offset()} "
                f"came where {len(offsets)} was to come"
            )
            return
        offsets.append(message.offset())

    def _finish(self) -> None:
        self._consumer.close()


class LeaderWatch(Watcher):
    """Measures for how long a partition has no leader, by what healthy brokers tell clients."""

    def __init__(self, cluster: ChaosCluster) -> None:
        super().__init__()
        #: The longest time without a leader; only counted while `is_bounded`.
        self.longest_seconds = 0.0
        self.is_bounded = True
        self._cluster = cluster
        self._connections: dict[int, BlockingConnection] = {}
        # Since when, by partition; and the time at which we looked last.
        self._missing: dict[int, float] = {}
        self._looked_at = time.monotonic()

    def _step(self) -> None:
        victims = set(self._cluster.victims)
        healthy = [each for each in self._cluster.brokers if each not in victims]
        led: set[int] = set()
        for broker_id in healthy:
            led.update(self._led_partitions(broker_id, healthy))
        now = time.monotonic()
        # Time in which this thread did not get to run is the machine's, not the cluster's.
        lost = max(0.0, now - self._looked_at - 1.0)
        self._looked_at = now
        for partition in range(PARTITIONS):
            if partition in led or not self.is_bounded:
                self._missing.pop(partition, None)
                continue
            since = self._missing.get(partition, now) + lost
            self._missing[partition] = since
            self.longest_seconds = max(self.longest_seconds, now - since)
        self._stopping.wait(0.2)

    def _led_partitions(self, broker_id: int, healthy: list[int]) -> set[int]:
        answer = self._ask(broker_id)
        if answer is None or not answer.topics:
            return set()
        return {
            row.partition_index for row in answer.topics[0].partitions if row.leader_id in healthy
        }

    def _ask(self, broker_id: int) -> MetadataResponse | None:
        deadline_ms = monotonic_ms() + _ASK_MS
        connection = self._connections.pop(broker_id, None)
        if connection is not None and not connection.is_usable():
            connection.close()
            connection = None
        try:
            if connection is None:
                address = Address("127.0.0.1", self._cluster.brokers[broker_id].port)
                connection = BlockingConnection(address, client_id="leader-watch")
                connection.connect(deadline_ms)
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            answer = connection.request(request, deadline_ms)
        except ClientError:
            return None
        self._connections[broker_id] = connection
        assert isinstance(answer, MetadataResponse)
        return answer

    def _finish(self) -> None:
        for connection in self._connections.values():
            connection.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Looks until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
