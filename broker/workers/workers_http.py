"""The one HTTP port of the workers of a machine: health, state, metrics and the console.

Health and state are what the workers report to the supervisor. Metrics are read from each worker
when they are scraped. The console is that of one worker, to which requests are relayed: it shows
the whole cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.broker.config.workers import machine_name
from ottla.broker.observability.http_endpoint import (
    METRICS,
    PEER_HEADER,
    TEXT,
    HttpEndpoint,
)
from ottla.broker.observability.monitoring import host_names, http_address, listen_http
from ottla.broker.runtime.tasks import spawn, stop
from ottla.broker.workers.metrics import merge, own_metrics, total

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.workers.supervisor import Worker

logger = logging.getLogger("ottla.workers")

MAX_RESPONSE_BYTES = 64 << 20
"""Of the metrics of a worker: ten thousand topics have some megabytes."""
SCRAPE_SECONDS = 8.0
_CHUNK_BYTES = 65_536


class WorkersHttp:
    """Closed unless `ottla.metrics.address` is set or the console is enabled. Loop only."""

    def __init__(self, config: BrokerConfig, workers: Sequence[Worker]) -> None:
        self.port = 0
        self._config = config
        self._workers = workers
        self._endpoint: HttpEndpoint | None = None

    async def open(self) -> None:
        """Raises PortInUse or ConfigError."""
        address = http_address(self._config)
        if address is None:
            return
        self._endpoint = HttpEndpoint(
            healthy=self._unhealthy,
            ready=self._not_ready,
            warnings=self._warnings,
            status=self.document,
            hosts=host_names(self._config),
            relay=self._relay,
        )
        self.port = await listen_http(self._endpoint, address)

    async def close(self) -> None:
        """Stops listening."""
        if self._endpoint is not None:
            await self._endpoint.close()

    # Health and state

    def _unhealthy(self) -> str | None:
        """A worker that was given up does not come back by itself; one that restarts does."""
        lost = [str(each) for each in self._workers if each.phase == "given up"]
        return f"{', '.join(lost)}: given up, see the log" if lost else None

    def _not_ready(self) -> str | None:
        problems = [(each, each.problem()) for each in self._workers]
        return "; ".join(f"{each}: {why}" for each, why in problems if why is not None) or None

    def _warnings(self) -> list[str]:
        return [
            f"{each}: {text}" for each in self._workers for text in each.report.get("warnings", ())
        ]

    def document(self) -> dict[str, Any]:
        """The state of the machine as /statusz serves it; docs/workers.md has the fields."""
        reason = self._not_ready()
        states = [each.report.get("state", {}) for each in self._workers]
        return {
            "machine": machine_name(),
            "cluster_id": next((each["cluster_id"] for each in states if each), None),
            "supervisor_pid": os.getpid(),
            "ready": reason is None,
            "reason": reason,
            "workers": [
                {
                    "worker": each.number,
                    "phase": each.phase,
                    "pid": each.pid,
                    "restarts": each.restarts,
                    "core": each.place.core,
                    "problem": each.problem(),
                    "state": state,
                }
                for each, state in zip(self._workers, states, strict=True)
            ],
        }

    # Metrics and console

    async def _relay(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
    ) -> None:
        if path in ("/metrics", "/metrics/total"):
            method = head.partition(b" ")[0]
            body = await self._metrics(adds_up=path != "/metrics")
            await _respond(writer, "200 OK", METRICS, body, with_body=method != b"HEAD")
            return
        for worker in self._workers:
            if worker.phase == "running":
                await self._relay_to(worker, head, reader, writer)
                return
        reason = (self._not_ready() or "no worker serves clients").encode() + b"\n"
        await _respond(writer, "503 Service Unavailable", TEXT, reason)

    async def _metrics(self, *, adds_up: bool) -> bytes:
        running = [each for each in self._workers if each.phase == "running"]
        texts = await asyncio.gather(*(self._scrape(each) for each in running))
        found = {
            each.number: text for each, text in zip(running, texts, strict=True) if text is not None
        }
        rows = [(each.number, each.problem() is None, each.restarts) for each in self._workers]
        # In a thread: the loop serves the znode tree meanwhile.
        return await asyncio.to_thread((total if adds_up else merge), found, own_metrics(rows))

    async def _scrape(self, worker: Worker) -> bytes | None:
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                reader, writer = await asyncio.open_unix_connection(
                    worker.place.http_socket(worker.number), limit=MAX_RESPONSE_BYTES
                )
                try:
                    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    head = await reader.readuntil(b"\r\n\r\n")
                    if b" 200 " not in head.partition(b"\r\n")[0]:
                        return None
                    return await reader.read(-1)
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.warning("%s has no metrics: %s", worker, error or type(error).__name__)
            return None

    async def _relay_to(
        self,
        worker: Worker,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Bounded by the deadline of the endpoint for the response."""
        there, sink = await asyncio.open_unix_connection(worker.place.http_socket(worker.number))
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        line, _, rest = head.partition(b"\r\n")
        sink.write(line + b"\r\n" + PEER_HEADER + peer.encode() + b"\r\n" + rest)
        body = spawn(_copy(reader, sink), name="console-body")
        try:
            await _copy(there, writer)
        finally:
            await stop(body)
            sink.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # either side has closed: so has the response
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


async def _respond(
    writer: asyncio.StreamWriter,
    status: str,
    content_type: str,
    body: bytes,
    *,
    with_body: bool = True,
) -> None:
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    )
    if with_body:
        writer.write(body)
    await writer.drain()
