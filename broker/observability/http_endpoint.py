"""A small HTTP server beside the broker: /metrics for Prometheus, /healthz and /readyz for
health checks, and the console where it is enabled.

It serves GET and HEAD and nothing else, on a port of its own, to a bounded number of clients with
bounded patience. The Prometheus library is imported when the first scrape comes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.metrics.exposition import render
from ottla.broker.metrics.statistics import TIME_BUCKETS, Metric, MetricsRegistry, Reading
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.tasks import WorkerPool

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as PrometheusMetric

    from ottla.broker.observability.console.console import Console, ConsoleRequest

logger = logging.getLogger("ottla.http")

# A scrape and a few probes at once are normal; more is a mistake or an attack.
MAX_CLIENTS = 16

# A request line and headers of any sane client fit; more is cut off.
MAX_REQUEST_BYTES = 16384

# For the request to arrive, and for the response to be read.
TIMEOUT_SECONDS = 10.0

TEXT = "text/plain; charset=utf-8"

# None when all is well, else what is wrong, as text.
Check = Callable[[], str | None]


class HttpEndpoint:
    """Serves the metrics of a registry and two health checks."""

    def __init__(
        self,
        registry: MetricsRegistry,
        channel: RequestChannel,
        worker_pool: WorkerPool,
        *,
        healthy: Check,
        ready: Check,
        console: "Console | None" = None,
    ) -> None:
        """`healthy`: whether the process should live on; `ready`: whether clients may come."""
        self._console = console
        self._registry = registry
        self._channel = channel
        self._worker_pool = worker_pool
        self._checks = {"/healthz": healthy, "/readyz": ready}
        self._clients: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._process: CollectorRegistry | None = None  # memory, CPU, descriptors

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 picks a free one. Returns the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._serve, host or None, port, limit=MAX_REQUEST_BYTES
        )
        if self._console is not None:
            self._console.start()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
            for writer in self._clients:
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None
            if self._console is not None:
                await self._console.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            if len(self._clients) <= MAX_CLIENTS:
                await asyncio.wait_for(self._serve_connection(reader, writer), TIMEOUT_SECONDS)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # closed, too slow, or not HTTP: no response is possible
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return
        method, target, _ = words
        path, _, query = target.partition("?")
        console = self._console
        more_headers = ""
        try:
            if console is not None and method in ("GET", "HEAD") and console.handles(path):
                more_headers = console.headers
                request = _console_request(path, query, head, writer)
                status, content_type, body = await console.respond(request)
            else:
                status, content_type, body = await self._respond(method, path)
        except Exception:
            logger.exception("cannot respond to %s %s", method, target)
            status, content_type, body = "500 Internal Server Error", TEXT, b"see the log\n"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n{more_headers}Connection: close\r\n\r\n".encode()
        )
        if method != "HEAD":
            writer.write(body)
        await writer.drain()

    async def _respond(self, method: str, path: str) -> tuple[str, str, bytes]:
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", TEXT, b"only GET and HEAD\n"
        check = self._checks.get(path)
        if check is not None:
            problem = check()
            if problem is None:
                return "200 OK", TEXT, b"ok\n"
            return "503 Service Unavailable", TEXT, f"{problem}\n".encode()
        if path == "/metrics":
            return await self._metrics()
        return "404 Not Found", TEXT, b"there are /metrics, /healthz and /readyz\n"

    async def _metrics(self) -> tuple[str, str, bytes]:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        process = self._process
        if process is None:
            process = self._process = CollectorRegistry()
            ProcessCollector(registry=process)
        # The numbers are read here, on the loop that changes them; the text is made elsewhere.
        readings = self._read_registry()
        snapshot = CollectorRegistry(auto_describe=False)
        snapshot.register(_Snapshot([self._request_times()]))
        text = await self._worker_pool.run(
            lambda: render(readings) + generate_latest(snapshot) + generate_latest(process)
        )
        return "200 OK", CONTENT_TYPE_LATEST, text

    def _read_registry(self) -> list[tuple[Metric, Reading]]:
        readings = []
        for metric in self._registry.metrics:
            try:
                readings.append((metric, metric.read()))
            except Exception:
                logger.exception("metric %s cannot be read", metric.name)
        for family in self._registry.families:
            readings.extend(family())
        return readings

    def _request_times(self) -> "PrometheusMetric":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(
            "ottla_request_seconds",
            "From the last byte of a request to the last byte of its response.",
            labels=("api",),
        )
        for route in self._channel.routes.values():
            statistics = route.statistics
            if not statistics.by_version:
                continue
            buckets = []
            so_far = 0
            for bound, count in zip(
                (*map(str, TIME_BUCKETS), "+Inf"), statistics.total_buckets, strict=True
            ):
                so_far += count
                buckets.append((bound, so_far))
            family.add_metric((route.entry.name,), buckets, statistics.total_seconds)
        return family


def _console_request(
    path: str, query: str, head: bytes, writer: asyncio.StreamWriter
) -> "ConsoleRequest":
    from ottla.broker.observability.console.console import ConsoleRequest

    host = ""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        if name.strip().lower() == "host":
            host = value.strip()
    peer = writer.get_extra_info("peername") or ("",)
    return ConsoleRequest(path, query, host, str(peer[0]))


class _Snapshot:
    """Families that were read already, as the library wants them."""

    def __init__(self, families: "list[PrometheusMetric]") -> None:
        self._families = families

    def collect(self) -> "list[PrometheusMetric]":
        return self._families
