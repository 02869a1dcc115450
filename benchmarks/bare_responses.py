"""The floor under the latency figures: a process that only sends responses.

`python -m benchmarks.bare_responses` drives it with the client of `benchmarks.latency`. It takes
frames out of sockets, sends every batch to the waiting consumer and a response to the producer: no
checks, no log, no second partition. What it needs is the client, the loopback and the waking up of
two processes, so no broker in any language can be faster on the same machine.
"""

import contextlib
import multiprocessing
import select
import socket
from multiprocessing.connection import Connection
from struct import pack_into, unpack_from

from benchmarks import latency, wire
from ottla.protocol.headers import encode_response
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

RATES = (100, 1000, 10_000)
SECONDS = 6.0
PRODUCE = b"\0\0"
TOPIC = "t"
# What stands behind the records in a produce request: three empty lists of tagged fields.
BEHIND_RECORDS = 3


def batch_in(frame: bytes) -> bytearray:
    """The record batch of a produce request, which ends with it."""
    end = len(frame) - BEHIND_RECORDS
    start = frame.index(bytes(8), 12)
    while frame[start + 16] != 2 or 12 + unpack_from(">i", frame, start + 8)[0] != end - start:
        start = frame.index(bytes(8), start + 1)
    return bytearray(frame[start:end])


def produce_response() -> bytes:
    row = PartitionProduceResponse(0, 0, 0, -1, 0)
    response = ProduceResponse(responses=[TopicProduceResponse(TOPIC, [row])])
    return b"".join(encode_response(0, wire.PRODUCE_VERSION, 1, response))


class ResponseOnlyServer:
    """One topic, one partition, one consumer."""

    def __init__(self) -> None:
        self._next_offset = 0
        self._unread: list[bytes] = []
        self._waiting: socket.socket | None = None
        self._acknowledgement = produce_response()

    def take(self, sock: socket.socket, frame: bytes) -> None:
        if frame.startswith(PRODUCE):
            batch = batch_in(frame)
            pack_into(">q", batch, 0, self._next_offset)
            self._next_offset += unpack_from(">i", batch, 23)[0] + 1
            if self._next_offset > 1:  # the first record is the client's trial
                self._unread.append(bytes(batch))
            self._hand_over()
            sock.sendall(self._acknowledgement)
        else:
            self._waiting = sock
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting is not None and self._unread:
            response = bytes(8) + b"".join(self._unread)
            self._waiting.sendall(len(response).to_bytes(4) + response)
            self._waiting = None
            self._unread.clear()


def serve(port: Connection) -> None:
    """Sends its port, then responses until the process ends."""
    responses = ResponseOnlyServer()
    poll = select.epoll()
    listener = socket.create_server(("127.0.0.1", 0))
    poll.register(listener.fileno(), select.EPOLLIN)
    clients: dict[int, tuple[socket.socket, bytearray]] = {}
    port.send(listener.getsockname()[1])
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[client.fileno()] = client, bytearray()
                poll.register(client.fileno(), select.EPOLLIN)
                continue
            client, received = clients[descriptor]
            try:
                data = client.recv(1 << 20)
            except ConnectionError:  # it ended before it had read all responses
                data = b""
            if not data:
                poll.unregister(descriptor)
                client.close()
                continue
            received += data
            while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4])):
                with contextlib.suppress(OSError):  # it can disconnect before its response
                    responses.take(client, bytes(received[4:end]))
                del received[:end]


def latencies_ms(rate: int, seconds: float) -> dict[str, float]:
    """As `latency.latencies_ms`, of a process of its own."""
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(its,))
    process.start()
    try:
        return latency.latencies_ms(f"127.0.0.1:{mine.recv()}", TOPIC, rate, seconds)
    finally:
        process.kill()
        process.join()


def main() -> None:
    for rate in RATES:
        found = latencies_ms(rate, SECONDS)
        print(f"{rate}/s: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in found.items()))


if __name__ == "__main__":
    main()
