"""A network server with a few handlers, metrics and a stall monitor in a process of its own.

    python -m tests.doubles.network_process PORTS_FILE DATA_FILE

Writes the port of the listener and of the HTTP endpoint into PORTS_FILE once both are open, and
serves until it is killed.
"""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from ottla.broker.metrics.loop_stalls import StallMonitor
from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.net.listener import SocketSettings
from ottla.broker.net.server import NetworkServer
from ottla.broker.observability.http_endpoint import HttpEndpoint
from ottla.broker.observability.metrics_sources import add_network, add_process, add_requests
from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.requests.request_channel import RequestChannel, RequestContext
from ottla.broker.runtime.tasks import WorkerPool
from ottla.broker.runtime.timer import Timer
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.doubles.network import api_versions_response, entry, metadata_response

MAX_IN_PROGRESS_BYTES = 32 << 20


class FilePart:
    """A part of a file, as the log hands it out."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd, self.position, self.length = fd, position, length

    def __len__(self) -> int:
        return self.length


class Data:
    """Fetches return `max_bytes` bytes of a file; produced records are counted."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY)

    def fetch(self, _: RequestContext, request: FetchRequest) -> Message:
        part = FilePart(self.fd, 0, request.max_bytes)
        row = PartitionData(records=part)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])

    def produce(self, _: RequestContext, request: ProduceRequest) -> Message:
        size = sum(
            len(data.records or b"")
            for topic in request.topic_data
            for data in topic.partition_data
        )
        return ProduceResponse(throttle_time_ms=size % 1000)


async def serve(ports_path: Path, data_path: str) -> None:
    data = Data(data_path)
    table = [
        entry(18, "ApiVersions", api_versions_response, before_authentication=True),
        entry(3, "Metadata", metadata_response),
        entry(1, "Fetch", data.fetch),
        entry(0, "Produce", data.produce),
    ]
    memory = MemoryBudget()
    memory.limit(MAX_IN_PROGRESS_BYTES, MAX_IN_PROGRESS_BYTES, MAX_IN_PROGRESS_BYTES)
    channel = RequestChannel(table, lambda context, error: None, memory=memory)
    pool = WorkerPool(threads=2)
    sockets = SocketSettings(backlog=1024)
    server = NetworkServer(channel, Timer(), pool, sockets=sockets)
    registry = MetricsRegistry()
    add_network(registry, server)
    add_requests(registry, channel)
    add_process(registry, pool)
    port = server.add_listener("PLAINTEXT", "127.0.0.1", 0)
    channel.start()
    server.start()
    StallMonitor(channel.stalls).start()
    endpoint = HttpEndpoint(healthy=lambda: None, ready=lambda: None)
    endpoint.serve(registry, channel, pool)
    http_port = await endpoint.start("127.0.0.1", 0)
    written = ports_path.with_suffix(".part")
    written.write_text(f"{port} {http_port}")
    written.rename(ports_path)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), sys.argv[2]))
