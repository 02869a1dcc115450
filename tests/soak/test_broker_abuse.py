"""A whole broker in its own process, with real clients, while others misuse it.

Compression bombs, consumers that send requests and never read, many real clients that connect and
disconnect. Meanwhile a good client produces and reads back.
Afterwards no connection, task, descriptor or byte of a
request may be left, and the memory is back where it was after the first rounds.

OTTLA_SOAK_ROUNDS=80 is the long form, with 200 real clients at a time.
"""

import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import pack, pack_into
from time import monotonic, sleep

import crc32c
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.soak.observed import ObservedServer, halves, summary

LONG = "OTTLA_SOAK_ROUNDS" in os.environ
ROUNDS = max(2, int(os.environ.get("OTTLA_SOAK_ROUNDS", "2")) // 8)
CLIENTS = 200 if LONG else 20
DEADLINE_SECONDS = 120.0
BOMB_BYTES = 150 << 20  # more than the broker is willing to unpack
BOMB_RECORDS = 10_000_000
SPARE_BYTES = 16 << 20  # what an allocator may keep of a big moment
RECORDS_POSITION = 61
CRC_POSITION = 17
SIZE_POSITION = 8
ATTRIBUTES_POSITION = 21
LAST_OFFSET_DELTA_POSITION = 23
COUNT_POSITION = 57
GZIP = 1


class Server(ObservedServer):
    """The broker; real clients want its address as they know it."""

    def __init__(self, broker: BrokerProcess, http_port: int) -> None:
        super().__init__(broker.pid, broker.port, http_port, DEADLINE_SECONDS)
        self.bootstrap = broker.bootstrap


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    http_port = free_port()
    with start_broker(
        tmp_path,
        ottla_metrics_address=f"127.0.0.1:{http_port}",
        offsets_topic_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
    ) as broker:
        yield Server(broker, http_port)
        assert "Traceback" not in broker.log()


class GoodClient(threading.Thread):
    """Produces with acks=all and reads back what it wrote, all along."""

    def __init__(self, server: Server) -> None:
        super().__init__(name="good-client")
        self._producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
        self._consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "good"})
        # Its connection to the coordinator is there before connections are counted.
        self._consumer.committed([TopicPartition("good", 0)], DEADLINE_SECONDS)
        self._consumer.assign([TopicPartition("good", 0, OFFSET_BEGINNING)])
        self._ended = threading.Event()
        self.turns = 0
        self.error: Exception | None = None
        self.worst_seconds = 0.0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.turn()
        except Exception as error:
            self.error = error
        finally:
            self._consumer.close()

    def turn(self) -> None:
        begun = monotonic()
        value = f"{self.turns}".encode() * 100
        self._producer.produce("good", value)
        assert self._producer.flush(DEADLINE_SECONDS) == 0
        message = self._consumer.poll(DEADLINE_SECONDS)
        assert message is not None
        assert message.error() is None
        assert message.value() == value
        self.worst_seconds = max(self.worst_seconds, monotonic() - begun)
        self.turns += 1

    def is_served(self, turns: int) -> None:
        """Waits until it has got through so many more turns."""
        wanted = self.turns + turns
        deadline = monotonic() + DEADLINE_SECONDS
        while self.turns < wanted:
            assert self.error is None, self.error
            assert monotonic() < deadline, "the good client is not served"
            sleep(0.005)

    def stop(self) -> None:
        self._ended.set()
        self.join(DEADLINE_SECONDS)
        assert not self.is_alive()


def zigzag(value: int) -> bytes:
    """A length as records have it."""
    rest, found = value << 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def packed_batch(records: bytes, count: int) -> bytes:
    """A sound batch of gzipped records."""
    head = bytearray(build_batch([(1, b"key", b"", ())]))[:RECORDS_POSITION]
    found = head + gzip.compress(records, 9)
    pack_into(">i", found, SIZE_POSITION, len(found) - 12)
    pack_into(">h", found, ATTRIBUTES_POSITION, GZIP)
    pack_into(">i", found, LAST_OFFSET_DELTA_POSITION, count - 1)
    pack_into(">i", found, COUNT_POSITION, count)
    pack_into(">I", found, CRC_POSITION, crc32c.crc32c(bytes(found[ATTRIBUTES_POSITION:])))
    return bytes(found)


def bombs() -> list[bytes]:
    """One value of 150 MB, and ten million records of a few bytes, in some 100 KB each."""
    value = b"\x00\x00\x00\x06key" + zigzag(BOMB_BYTES) + bytes(BOMB_BYTES) + b"\x00"
    nothing = zigzag(9) + b"\x00\x00\x00\x06key\x00\x00"
    return [
        packed_batch(zigzag(len(value)) + value, 1),
        packed_batch(nothing * BOMB_RECORDS, BOMB_RECORDS),
    ]


def ask_to_produce(server: Server, topic: str, records: bytes) -> int:
    """The error code."""
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    with server.connect() as sock, sock.makefile("rb") as file:
        sock.sendall(encode_request(1, "bad", request, 9))
        size = int.from_bytes(file.read(4), "big")
        _, response = decode_response(memoryview(file.read(size)), request.API_KEY, 9)
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def compression_bombs(server: Server, packed: list[bytes]) -> None:
    for topic in ("compacted", "recompressed"):
        for batch in packed:
            assert ask_to_produce(server, topic, batch) == ErrorCode.MESSAGE_TOO_LARGE


def consumers_that_never_read(server: Server, good: GoodClient) -> None:
    rows = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    request = FetchRequest(max_bytes=50 << 20, topics=[FetchTopic(topic="big", partitions=rows)])
    frame = encode_request(1, "bad", request, 12)
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(server.connect(receive_buffer_bytes=4096)).sendall(frame * 20)
        good.is_served(5)


def random_bytes(server: Server, good: GoodClient) -> None:
    """For every API there is: the header of a request, and nonsense behind it."""
    with ExitStack() as stack:
        for key in range(70):
            sock = stack.enter_context(server.connect())
            content = pack(">hhi", key, 1, 1) + os.urandom(64)
            sock.sendall(pack(">i", len(content)) + content)
        good.is_served(3)


def many_real_clients(server: Server, good: GoodClient) -> None:
    producers = [
        Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0}) for _ in range(CLIENTS)
    ]
    for number, producer in enumerate(producers):
        producer.produce("shared", f"{number}".encode() * 50)
    deadline = monotonic() + DEADLINE_SECONDS
    while any(len(producer) for producer in producers):
        assert monotonic() < deadline, "real clients are not served"
        for producer in producers:
            producer.poll(0)
        sleep(0.01)
    good.is_served(3)


def until_nothing_is_left(server: Server, connections: float) -> None:
    """The good client continues meanwhile, so that one of many samples suffices."""
    wanted = {"connections": connections, "queued requests": 0.0}

    def nothing_is_left() -> bool:
        left = server.left()
        return all(left[name] <= value for name, value in wanted.items())

    eventually(
        nothing_is_left,
        lambda: f"left behind: {server.left()}, wanted: {wanted}",
        seconds=DEADLINE_SECONDS,
    )


def test_a_broker_outlives_abuse_and_serves_on(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    topics = [
        NewTopic("good", 1, 1),
        NewTopic("shared", 6, 1, config={"retention.bytes": "1000000"}),
        NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"}),
        NewTopic("recompressed", 1, 1, config={"compression.type": "lz4"}),
        NewTopic("big", 1, 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_SECONDS)
    filler = Producer({"bootstrap.servers": server.bootstrap})
    for _ in range(40):
        filler.produce("big", bytes(100_000))
    assert filler.flush(DEADLINE_SECONDS) == 0
    del filler
    packed = bombs()
    good = GoodClient(server)
    good.start()
    memory = []
    try:
        good.is_served(3)
        connections = server.left()["connections"]
        for _ in range(ROUNDS):
            consumers_that_never_read(server, good)
            compression_bombs(server, packed)
            random_bytes(server, good)
            many_real_clients(server, good)
            until_nothing_is_left(server, connections)
            memory.append(int(server.process.memory_info().rss))
    finally:
        good.stop()
    assert good.error is None
    print(
        f"{good.turns} turns of the good client, the slowest {good.worst_seconds * 1000:.0f} ms; "
        + summary(server, memory)
    )
    first, second = halves(memory)
    assert second < first * 1.1 + SPARE_BYTES
