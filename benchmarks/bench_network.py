"""The network layer by itself: real requests, tiny handlers, a client in another process.

What is measured is everything between the socket and the handler: frames, decoding, the request
channel, the handler task, encoding, sending; no log and no replication. Processor time is that of
the server's process. The client speaks raw frames, with five requests in flight on a connection.

    python -m benchmarks.bench_network [--loop uvloop|asyncio] [--only WORD]
"""

import argparse
import asyncio
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from ottla.broker.net.listener import SocketSettings
from ottla.broker.net.server import NetworkServer
from ottla.broker.requests.request_channel import HandlerEntry, RequestChannel, RequestContext
from ottla.broker.requests.request_parts import FETCH, PRODUCE
from ottla.broker.runtime.tasks import WorkerPool
from ottla.broker.runtime.timer import Timer
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

IN_FLIGHT = 5
FILE_BYTES = 64 << 20
SOCKET_BYTES = (
    102_400  # Kafka's default of socket.send.buffer.bytes and socket.receive.buffer.bytes
)


class FilePart:
    """A part of a file, as the log hands it out."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd, self.position, self.length = fd, position, length

    def __len__(self) -> int:
        return self.length


def api_versions(_: RequestContext, __: ApiVersionsRequest) -> Message:
    return ApiVersionsResponse(api_keys=[ApiVersion(18, 0, 4)])


def produce(_: RequestContext, request: ProduceRequest) -> Message:
    topics = [
        TopicProduceResponse(
            topic.name,
            [PartitionProduceResponse(data.index, 0, 5) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(topics)


class Fetches:
    """Responds with the part of a file at the offset, within the partition's size bound."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY)

    def handle(self, _: RequestContext, request: FetchRequest) -> Message:
        wanted = request.topics[0].partitions[0]
        part = FilePart(self.fd, wanted.fetch_offset, wanted.partition_max_bytes)
        row = PartitionData(0, high_watermark=9, records=part)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])


async def serve(port_path: Path, file_path: str, socket_bytes: int) -> None:
    table = [
        HandlerEntry(18, "ApiVersions", 0, 4, api_versions),
        HandlerEntry(0, "Produce", 0, 9, produce, limits=PRODUCE),
        HandlerEntry(1, "Fetch", 0, 12, Fetches(file_path).handle, limits=FETCH),
    ]
    channel = RequestChannel(table, lambda context, error: None)
    sockets = SocketSettings(
        send_buffer_bytes=socket_bytes, receive_buffer_bytes=socket_bytes, backlog=1024
    )
    server = NetworkServer(channel, Timer(), WorkerPool(), sockets=sockets)
    port = server.add_listener("PLAINTEXT", "127.0.0.1", 0)
    channel.start()
    server.start()
    port_path.write_text(str(port))  # noqa: ASYNC240 (before the first client)
    await asyncio.Event().wait()


class Server(NamedTuple):
    port: int
    process: psutil.Process

    def processor_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def resident_bytes(self) -> int:
        return int(self.process.memory_info().rss)


@contextmanager
def running_server(loop: str, socket_bytes: int = SOCKET_BYTES) -> Any:
    """A server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        port_path, file_path = Path(folder, "port"), Path(folder, "segment.log")
        file_path.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        command = [sys.executable, "-m", "benchmarks.bench_network", "--loop", loop]
        command += ["--serve", str(port_path), str(file_path), str(socket_bytes)]
        process = subprocess.Popen(command)
        try:
            while not port_path.exists() or not port_path.read_text():
                if process.poll() is not None:
                    raise SystemExit("the server did not start")
                select.select([], [], [], 0.01)
            yield Server(int(port_path.read_text()), psutil.Process(process.pid))
        finally:
            process.kill()
            process.wait()


class Load(NamedTuple):
    """One kind of request, and the size of its response."""

    frame: bytes
    response_bytes: int


def drive(port: int, load: Load, connections: int, count: int) -> float:
    """Send `count` requests over so many connections; returns the seconds they took."""
    poll = select.epoll()
    clients: dict[int, list[Any]] = {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock.fileno(), select.EPOLLIN)
        clients[sock.fileno()] = [sock, 0]
    buffer = bytearray(1 << 20)
    started_at = perf_counter()
    sent = done = 0
    for client in clients.values():
        first = min(IN_FLIGHT, count - sent)
        client[0].sendall(load.frame * first)
        sent += first
    while done < count:
        for fd, _ in poll.poll():
            client = clients[fd]
            received = client[0].recv_into(buffer)
            if not received:
                raise SystemExit("the server closed a connection")
            responses, client[1] = divmod(client[1] + received, load.response_bytes)
            done += responses
            more = min(responses, count - sent)
            if more:
                client[0].sendall(load.frame * more)
                sent += more
    seconds = perf_counter() - started_at
    for client in clients.values():
        client[0].close()
    return seconds


def ask_once(port: int, frame: bytes) -> Load:
    """The load that a request makes: measures its response."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(frame)
        return Load(frame, 4 + int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big"))


def produce_frame(size: int) -> bytes:
    data = PartitionProduceData(index=0, records=bytes(size))
    topic = TopicProduceData(name="t", partition_data=[data])
    return encode_request(1, "bench", ProduceRequest(acks=1, topic_data=[topic]), 9)


def fetch_frame(size: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=4096, partition_max_bytes=size)
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])])
    return encode_request(1, "bench", request, 12)


def measure(
    table: Table, server: Server, name: str, frame: bytes, connections: int, count: int, size: int
) -> None:
    load = ask_once(server.port, frame)
    drive(server.port, load, connections, max(count // 10, 1))  # warms up
    before = server.processor_seconds()
    seconds = drive(server.port, load, connections, count)
    used = server.processor_seconds() - before
    bandwidth = f"{count * size / seconds / 1e6:,.0f} MB/s" if size else ""
    per_gigabyte = f"{used / (count * size / 1e9):.2f} s/GB" if size else ""
    table.add_row(
        name,
        f"{count / seconds:,.0f}/s",
        f"{used / count * 1e6:.0f} us",
        bandwidth,
        per_gigabyte,
    )


def idle_connections(table: Table, server: Server, count: int) -> None:
    before = server.resident_bytes()
    started_at = perf_counter()
    frame = encode_request(1, "bench", ApiVersionsRequest(), 0)
    socks = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(frame)
        sock.recv(1000)
        socks.append(sock)
    seconds = perf_counter() - started_at
    memory = server.resident_bytes() - before
    table.add_row(
        f"{count:,} connections, each used once: memory of one",
        f"{count / seconds:,.0f}/s",
        f"{memory / count:,.0f} B",
        "",
        "",
    )
    for sock in socks:
        sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--only", default="")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        run: Callable[[Any], None] = uvloop.run if arguments.loop == "uvloop" else asyncio.run
        port_path, file_path, socket_bytes = arguments.serve
        run(serve(Path(port_path), file_path, int(socket_bytes)))
        return
    table = Table("what", "requests", "CPU a request", "data", "CPU")
    tiny = encode_request(1, "bench", ApiVersionsRequest(), 0)
    lines = [
        *((f"tiny, {n} connections", tiny, n, 60_000, 0) for n in (1, 8, 50, 200)),
        ("produce 100 B, 8 connections", produce_frame(100), 8, 40_000, 100),
        ("produce 16 KiB, 1 connection", produce_frame(16384), 1, 30_000, 16384),
        ("produce 1 MiB, 1 connection", produce_frame(1 << 20), 1, 1_000, 1 << 20),
        ("fetch 1 KB, 8 connections", fetch_frame(1_000), 8, 40_000, 1_000),
        ("fetch 1 MiB, 1 connection", fetch_frame(1 << 20), 1, 3_000, 1 << 20),
        ("fetch 10 MiB, 4 connections", fetch_frame(10 << 20), 4, 300, 10 << 20),
    ]
    with running_server(arguments.loop) as server:
        for name, frame, connections, count, size in lines:
            if arguments.only in name:
                measure(table, server, name, frame, connections, count, size)
    with running_server(arguments.loop, -1) as server:
        for name, frame, connections, count, size in lines:
            if size >= 16384 and arguments.only in name:
                label = f"{name}, buffers by the system"
                measure(table, server, label, frame, connections, count, size)
    with running_server(arguments.loop) as server:
        if arguments.only in "connections, each used once":
            idle_connections(table, server, 5_000)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
