"""A client for measurements that costs next to nothing: frames encoded once, many connections.

One thread and one epoll. Responses are counted by their length field and otherwise not
decoded, but for the first, which must be free of errors. The same client drives both brokers.
"""

import select
import socket
import time
from collections.abc import Callable

from ottla.protocol.headers import decode_response, encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch

PRODUCE_VERSION, FETCH_VERSION = 9, 12
DEADLINE_S = 60.0
RECEIVE_BYTES = 1 << 20
WARM_UP_S = 0.5

# Codes of a topic without a leader on this broker yet.
NOT_READY = (3, 5, 6)

_received = bytearray(RECEIVE_BYTES)


def connect(bootstrap: str, source: str = "") -> socket.socket:
    """A connection whose every call has a deadline, from the address `source`."""
    host, _, port = bootstrap.rpartition(":")
    sock = socket.create_connection((host, int(port)), DEADLINE_S, (source, 0) if source else None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts += part
    return bytes(parts)


def call(sock: socket.socket, message: Message, version: int) -> Message:
    sock.sendall(encode_request(1, "bench", message, version))
    size = int.from_bytes(receive_exactly(sock, 4))
    return decode_response(receive_exactly(sock, size), message.API_KEY, version)[1]


def records(count: int, size: int) -> bytes:
    """A batch of that many records, each of so many bytes of value."""
    now_ms = int(time.time() * 1000)
    return build_batch((now_ms, None, bytes(size), ()) for _ in range(count))


def produce_request(topic: str, partition: int, batch: bytes, acks: int = 1) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch_request(
    topic: str, partition: int, offset: int, *, max_bytes: int = 1 << 20, max_wait_ms: int = 500
) -> FetchRequest:
    row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = 1) -> bytes:
    request = produce_request(topic, partition, batch, acks)
    return encode_request(1, "bench", request, PRODUCE_VERSION)


def check(bootstrap: str, request: ProduceRequest | FetchRequest) -> None:
    """The response has no error. A topic that was created just now gets some time."""
    deadline = time.perf_counter() + DEADLINE_S
    with connect(bootstrap) as sock:
        while True:
            if isinstance(request, ProduceRequest):
                produced = call(sock, request, PRODUCE_VERSION)
                assert isinstance(produced, ProduceResponse)
                code = produced.responses[0].partition_responses[0].error_code
            else:
                fetched = call(sock, request, FETCH_VERSION)
                assert isinstance(fetched, FetchResponse)
                code = fetched.responses[0].partitions[0].error_code
            if code not in NOT_READY or time.perf_counter() > deadline:
                break
            time.sleep(0.1)
        assert code == 0, code


class Lane:
    """One connection with a request of its own, some of them in flight."""

    def __init__(self, sock: socket.socket, frame: bytes) -> None:
        self.sock = sock
        self.frame = frame
        self.in_flight = 0
        self.received_bytes = 0
        self._left = 0  # bytes left of the current response
        self._size = b""  # a part of a length field

    def send(self, count: int) -> None:
        self.sock.sendall(self.frame * count if count > 1 else self.frame)
        self.in_flight += count

    def receive(self) -> int:
        """The number of complete responses."""
        received = self.sock.recv_into(_received)
        if not received:
            raise ConnectionError("the broker closed the connection")
        self.received_bytes += received
        done = position = 0
        while position < received:
            if not self._left:
                self._size += _received[position : position + 4 - len(self._size)]
                position += min(4, received - position) if len(self._size) == 4 else 0
                if len(self._size) < 4:
                    break
                self._left = int.from_bytes(self._size)
                self._size = b""
            step = min(self._left, received - position)
            position += step
            self._left -= step
            done += not self._left
        self.in_flight -= done
        return done


def drive(
    addresses: list[str], frames: list[bytes], seconds: float, in_flight: int
) -> tuple[int, int, float]:
    """One connection a frame to its address, each with so many requests in flight, for some time.

    Returns responses, bytes received and seconds, counted after the warm-up. What is in flight at
    the end is waited for and not counted.
    """
    poll = select.epoll()
    lanes: dict[int, Lane] = {}
    for address, frame in zip(addresses, frames, strict=True):
        lane = Lane(connect(address), frame)
        lanes[lane.sock.fileno()] = lane
        poll.register(lane.sock.fileno(), select.EPOLLIN)
    try:
        for lane in lanes.values():
            lane.send(in_flight)
        _turn_until(poll, lanes, time.perf_counter() + WARM_UP_S, refill=True)
        for lane in lanes.values():
            lane.received_bytes = 0
        begun = time.perf_counter()
        responses = _turn_until(poll, lanes, begun + seconds, refill=True)
        taken = time.perf_counter() - begun
        received = sum(lane.received_bytes for lane in lanes.values())
        _turn_until(poll, lanes, time.perf_counter() + DEADLINE_S, refill=False)
        return responses, received, taken
    finally:
        poll.close()
        for lane in lanes.values():
            lane.sock.close()


def _turn_until(
    poll: select.epoll, lanes: dict[int, Lane], deadline: float, *, refill: bool
) -> int:
    responses = 0
    clock: Callable[[], float] = time.perf_counter
    while clock() < deadline:
        if not refill and not any(lane.in_flight for lane in lanes.values()):
            break
        for descriptor, _ in poll.poll(1.0):
            lane = lanes[descriptor]
            done = lane.receive()
            if done:
                responses += done
                if refill:
                    lane.send(done)
    return responses
