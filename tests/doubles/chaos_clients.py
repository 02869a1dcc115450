"""The clients of a cluster in trouble: a writer, a reader, and one who watches for leaders.

Each runs on a thread of its own until it is stopped. What must never happen is written down in
`complaints`; nothing is asserted on these threads.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as ConsumedPartition

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.blocking_connection import BlockingConnection, monotonic_ms
from ottla.protocol.client.cluster import Address
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import LeaderOf
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from tests.simulation.cluster.history import History

TOPIC = "chaos"
PARTITIONS = 6
# Short enough for a client to leave a broker that does not respond.
_REQUEST_MS = 4_000
CLIENT = {
    "socket.timeout.ms": _REQUEST_MS,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,  # refused connections are what this is about
}
# Longer than any trouble that these tests make.
_WRITE_SECONDS = 180.0
# After which a producer may send the same batch once more.
_TRY_AGAIN = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
_JOIN_SECONDS = 200.0
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
    """Writes 0, 1, 2, ... to one partition; an idempotent producer with acks=all.

    One batch is under way, and it is sent until it is acknowledged, so that only the cluster can
    double a record. (librdkafka has several under way, and where one of them overtook another at a
    new leader it begins a new producer epoch, and repetitions are not seen any more.)
    """

    def __init__(self, bootstrap: str, partition: int, history: History) -> None:
        super().__init__()
        self._history = history
        self._name = f"writer-{partition}"
        history.sends_once(self._name)
        #: The number of each acknowledged record, with its offset.
        self.acknowledged: list[tuple[int, int]] = []
        self._partition = TopicPartition(TOPIC, partition)
        self._client = BlockingClient(bootstrap, request_timeout_ms=_REQUEST_MS)
        self._random = random.Random(partition)
        self._producer_id = -1

    def _step(self) -> None:
        first = len(self.acknowledged)
        count = self._random.randint(1, 20)
        deadline = time.monotonic() + _WRITE_SECONDS
        while (offset := self._attempt(first, count)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._partition}: {first} is not written")
            time.sleep(_PAUSE_SECONDS)
        self.acknowledged.extend((first + each, offset + each) for each in range(count))
        self._history.acknowledged(
            TOPIC, self._partition.partition, offset, self._values(first, count)
        )
        time.sleep(_PAUSE_SECONDS)

    def _attempt(self, first: int, count: int) -> int | None:
        """The offset of the batch; None when it may be sent again."""
        try:
            if self._producer_id < 0:
                self._producer_id = self._ask_for_id()
            response = self._client.call_once(
                self._request(first, count), LeaderOf(self._partition)
            )
        except (ClientError, KafkaError):
            self._client.forget_leader(self._partition)
            return None
        assert isinstance(response, ProduceResponse)
        row = response.responses[0].partition_responses[0]
        if row.error_code == ErrorCode.NONE:
            return row.base_offset
        if row.error_code not in _TRY_AGAIN:
            raise AssertionError(f"{self._partition}: {error_name(row.error_code)} for {first}")
        self._client.forget_leader(self._partition)
        return None

    def _ask_for_id(self) -> int:
        request = InitProducerIdRequest(None, 60_000, -1, -1)
        response = self._client.call_once(request)
        assert isinstance(response, InitProducerIdResponse)
        if response.error_code:
            raise KafkaError(response.error_code)
        return response.producer_id

    def _request(self, first: int, count: int) -> ProduceRequest:
        batch = build_batch(
            [(0, None, value, None) for value in self._values(first, count)],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=first,
        )
        row = PartitionProduceData(self._partition.partition, batch)
        return ProduceRequest(None, -1, _REQUEST_MS, [TopicProduceData(TOPIC, [row])])

    def _values(self, first: int, count: int) -> list[bytes]:
        return [b"%s:%d" % (self._name.encode(), first + each) for each in range(count)]

    def _finish(self) -> None:
        self._client.close()


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
                **CLIENT,
            }
        )
        self._consumer.assign([ConsumedPartition(TOPIC, each, 0) for each in range(PARTITIONS)])

    def counts(self) -> list[int]:
        """How many records were read of each partition."""
        return [len(each) for each in self.offsets]

    def _step(self) -> None:
        for message in self._consumer.consume(500, 0.2):
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == RdKafkaError._AUTO_OFFSET_RESET:
                self.complaints.append(f"the reader was lost: {error}")
        if len(self.complaints) > 20:
            raise KafkaException("enough was seen")

    def _take(self, message: Message) -> None:
        offsets = self.offsets[message.partition()]
        number = int((message.value() or b"").partition(b":")[2])
        if number != len(offsets):
            self.complaints.append(
                f"partition {message.partition()}: {number} at offset {message.offset()} "
                f"came where {len(offsets)} was to come"
            )
            return
        offsets.append(message.offset())

    def _finish(self) -> None:
        self._consumer.close()


class Broker(Protocol):
    """A port for clients is all that is asked of it."""

    port: int


class Troubled(Protocol):
    """The cluster of a run. `victims` cannot do their work now."""

    victims: set[int]

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """By broker id."""

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""

    def heal(self) -> None:
        """Everything runs and reaches everything."""

    def logs_are_identical(self, topic: str, partitions: int) -> bool:
        """Whether all replicas have the same bytes."""

    def replica(self, topic: str, index: int) -> Path:
        """The directory of one replica."""


class LeaderWatch(Watcher):
    """Measures for how long a partition has no leader, by what healthy brokers tell clients."""

    def __init__(self, cluster: Troubled) -> None:
        super().__init__()
        #: The longest time without a leader; only counted while `is_bounded`.
        self.longest_seconds = 0.0
        self.is_bounded = True
        self._cluster = cluster
        self._connections: dict[int, BlockingConnection] = {}
        # Since when, by partition; and the time at which we looked last.
        self._missing: dict[int, float] = {}
        self._checked_at = time.monotonic()

    def _step(self) -> None:
        victims = set(self._cluster.victims)
        healthy = [each for each in self._cluster.brokers if each not in victims]
        led: set[int] = set()
        for broker_id in healthy:
            led.update(self._led_partitions(broker_id, healthy))
        now = time.monotonic()
        # Time in which this thread did not get to run is the machine's, not the cluster's.
        lost = max(0.0, now - self._checked_at - 1.0)
        self._checked_at = now
        for partition in range(PARTITIONS):
            if partition in led or not self.is_bounded:
                self._missing.pop(partition, None)
                continue
            since = self._missing.get(partition, now) + lost
            self._missing[partition] = since
            self.longest_seconds = max(self.longest_seconds, now - since)
        self._stopping.wait(0.2)

    def _led_partitions(self, broker_id: int, healthy: list[int]) -> set[int]:
        response = self._ask(broker_id)
        if response is None or not response.topics:
            return set()
        return {
            row.partition_index for row in response.topics[0].partitions if row.leader_id in healthy
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
            response = connection.request(request, deadline_ms)
        except ClientError:
            return None
        self._connections[broker_id] = connection
        assert isinstance(response, MetadataResponse)
        return response

    def _finish(self) -> None:
        for connection in self._connections.values():
            connection.close()
