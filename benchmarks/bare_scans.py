"""The floor under the tail's latency beside scans: a process that only sends history.

It responds to each fetch with the same records, by sendfile, whatever the request says. A client
that scans it takes the processor time that it takes with a broker, and the broker has nothing to do
with that scan: what the tail loses is the part of the machine.
"""

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks import wire

FETCH_VERSION = 12


def recorded(bootstrap: str, topic: str) -> bytes:
    """A broker's response to a fetch of the begin of a topic, with its size in front."""
    request = wire.encode_request(1, "bench", wire.fetch_request(topic, 0, 0), FETCH_VERSION)
    with wire.connect(bootstrap) as sock:
        sock.sendall(request)
        size = wire.receive_exactly(sock, 4)
        return size + wire.receive_exactly(sock, int.from_bytes(size))


def serve(port: Connection, response: bytes) -> None:
    """Sends its port, then the response to each request of one client after the other."""
    listener = socket.create_server(("127.0.0.1", 0))
    port.send(listener.getsockname()[1])
    with tempfile.TemporaryFile() as file:
        file.write(response)
        file.flush()
        while True:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _respond(client, file.fileno(), len(response))


def _respond(client: socket.socket, descriptor: int, size: int) -> None:
    try:
        while client.recv(1 << 16):  # a client sends its next request after the response
            sent = 0
            while sent < size:
                sent += os.sendfile(client.fileno(), descriptor, sent, size - sent)
    except ConnectionError:
        return  # the client was killed


@contextmanager
def bare_server(bootstrap: str, topic: str) -> Iterator[str]:
    """The address of a process that sends the first records of a broker's topic."""
    mine, its = multiprocessing.Pipe()
    arguments = (its, recorded(bootstrap, topic))
    process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
    process.start()
    try:
        yield f"127.0.0.1:{mine.recv()}"
    finally:
        process.kill()
        process.join()
