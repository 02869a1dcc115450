"""Produce -> consume latency at a fixed rate, by a client that is cheap enough not to matter.

One thread, two sockets: one produces, one fetches (min 1 byte, wait 500 ms) as soon as it has its
response. As in every producer with linger 0 and five requests in flight, records that become due
while five are in flight go into one batch. Batches of n records are encoded once. Offsets say which
record is which, so no record is ever parsed. The latency of a record runs from the moment at which
it was due until the fetch response that holds it is here: a late client counts against the broker,
and against both alike.
"""

import select
import socket
import statistics
import time
from collections import deque
from struct import Struct

from benchmarks import wire

RECORD_BYTES = 100
IN_FLIGHT = 5
MOST_IN_A_BATCH = 500
WARM_UP_SECONDS = 1.0
GRACE_SECONDS = 10.0

_OFFSET_AND_SIZE = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_BATCH_LEAST = 61
_MAGIC_AT = 16
_LAST_OFFSET_DELTA_AT = 23
_OFFSET_MARK = 0x1122334455667788


class Reader:
    """Takes complete responses out of a socket that is known to be readable."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()

    def responses(self) -> list[bytes]:
        data = self._sock.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._buffer += data
        found = []
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4])
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[4:end]))
            del self._buffer[:end]
        return found


def next_offset(response: bytes, expected: int) -> int:
    """The offset after the last record of a fetch response, found by the batches' headers.

    The first batch begins with the offset of the request; nothing before it in the response
    looks like it, because a batch's length and its version byte must fit too.
    """
    mark = expected.to_bytes(8)
    start = response.find(mark)
    while start >= 0 and not _is_batch(response, start, expected):
        start = response.find(mark, start + 1)
    while start >= 0 and _is_batch(response, start, expected):
        size = _OFFSET_AND_SIZE.unpack_from(response, start)[1]
        expected += _LAST_OFFSET_DELTA.unpack_from(response, start + _LAST_OFFSET_DELTA_AT)[0] + 1
        start += 12 + size
    return expected


def _is_batch(response: bytes, start: int, expected: int) -> bool:
    """A whole batch of magic 2 with this base offset begins here."""
    if start + _BATCH_LEAST > len(response) or response[start + _MAGIC_AT] != 2:
        return False
    base, size = _OFFSET_AND_SIZE.unpack_from(response, start)
    return base == expected and _BATCH_LEAST <= 12 + size <= len(response) - start


class Exchange:
    """One topic, one record stream, one producer and one consumer."""

    def __init__(self, bootstrap: str, topic: str, rate: int, seconds: float) -> None:
        self._producer = wire.connect(bootstrap)
        self._consumer = wire.connect(bootstrap)
        wire.check(bootstrap, wire.produce_request(topic, 0, wire.records(1, RECORD_BYTES)))
        self._topic = topic
        self._rate = rate
        self._skipped = int(rate * WARM_UP_SECONDS)
        self._total = self._skipped + int(rate * seconds)
        self._frames: dict[int, bytes] = {}
        fetch = wire.encode_request(
            1, "bench", wire.fetch_request(topic, 0, _OFFSET_MARK), wire.FETCH_VERSION
        )
        self._fetch = bytearray(fetch)
        self._offset_at = fetch.index(_OFFSET_MARK.to_bytes(8))
        self._sent = self._in_flight = 0
        self._next = 1  # the first record was there to make sure that all is ready
        self._arrived: deque[tuple[int, float]] = deque()  # next offset, when

    def run(self) -> list[float]:
        """Latencies in seconds, in order of sending."""
        sockets = [self._producer, self._consumer]
        acknowledged, fetched = Reader(self._producer), Reader(self._consumer)
        self._ask_for_more()
        begun = time.perf_counter()
        give_up_at = begun + self._total / self._rate + GRACE_SECONDS
        while self._next <= self._total:
            now = time.perf_counter()
            if now > give_up_at:
                raise TimeoutError(f"{self._next - 1} of {self._total} records came back")
            self._send_what_is_due(now - begun)
            wait = begun + self._sent / self._rate - time.perf_counter()
            blocked = self._sent >= self._total or self._in_flight >= IN_FLIGHT
            # `select` waits by the microsecond, `epoll` by the millisecond.
            ready, _, _ = select.select(sockets, [], [], 1.0 if blocked else max(wait, 0.0))
            if self._consumer in ready:
                for response in fetched.responses():
                    self._next = next_offset(response, self._next)
                    self._arrived.append((self._next, time.perf_counter()))
                    self._ask_for_more()
            if self._producer in ready:
                self._in_flight -= len(acknowledged.responses())
        return self._latencies(begun)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def _send_what_is_due(self, elapsed: float) -> None:
        due = min(int(elapsed * self._rate) + 1, self._total)
        while self._sent < due and self._in_flight < IN_FLIGHT:
            count = min(due - self._sent, MOST_IN_A_BATCH)
            frame = self._frames.get(count)
            if frame is None:
                batch = wire.records(count, RECORD_BYTES)
                frame = self._frames[count] = wire.produce_frame(self._topic, 0, batch)
            self._producer.sendall(frame)
            self._sent += count
            self._in_flight += 1

    def _ask_for_more(self) -> None:
        self._fetch[self._offset_at : self._offset_at + 8] = self._next.to_bytes(8)
        self._consumer.sendall(self._fetch)

    def _latencies(self, begun: float) -> list[float]:
        found = []
        record = 0
        for next_one, moment in self._arrived:
            while record < next_one - 1:
                found.append(moment - begun - record / self._rate)
                record += 1
        return found[self._skipped :]


def latencies_ms(bootstrap: str, topic: str, rate: int, seconds: float) -> dict[str, float]:
    """p50, p99 and p99.9 of so many seconds after one second of warming up."""
    exchange = Exchange(bootstrap, topic, rate, seconds)
    try:
        taken = sorted(exchange.run())
    finally:
        exchange.close()
    return {
        "p50": statistics.median(taken) * 1000,
        "p99": taken[int(len(taken) * 0.99)] * 1000,
        "p99.9": taken[min(int(len(taken) * 0.999), len(taken) - 1)] * 1000,
    }
