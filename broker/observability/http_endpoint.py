"""A small HTTP server beside the broker: /metrics for Prometheus, /healthz, /livez and /readyz for
health checks, /statusz for the state as JSON, and the console where it is enabled.

It serves GET and HEAD, and POST to the console, on a port of its own. Clients that send a request
slowly are bounded apart from those that get a response, and the address with the most of them loses
its oldest, so that they do not keep a probe waiting; a probe is served before any other bound
applies. Other requests must name this machine (`http_hosts`).
The Prometheus library is imported when the first scrape comes.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.metrics.exposition import read_metrics, render
from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.observability.http_hosts import HostNames
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.runtime.tasks import WorkerPool, spawn, stop

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ottla.broker.observability.console.access import ConsoleRequest
    from ottla.broker.observability.console.console import Console

logger = logging.getLogger("ottla.http")

# Responses at once beside those to probes: a scrape and a page of the console are normal.
MAX_CLIENTS = 16

# Connections from which no whole request came yet. Each takes a descriptor and 16 KiB at most.
MAX_WAITING = 64

# A request line and headers of any sane client fit; more is cut off.
MAX_REQUEST_BYTES = 16384

# Of a POST to the console: a record to produce is the longest. With MAX_CLIENTS 16 MiB in all.
MAX_BODY_BYTES = 1 << 20

# For the request to arrive.
REQUEST_TIMEOUT_SECONDS = 5.0

# For the response to be made and read.
TIMEOUT_SECONDS = 10.0

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
HTML = "text/html; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"

# None when all is well, else what is wrong, as text.
Check = Callable[[], str | None]


# Gets request line and headers, the connection of the client, and the path.
Relay = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


class Content(NamedTuple):
    """The parts that the port serves once the broker has them."""

    registry: MetricsRegistry
    channel: RequestChannel
    worker_pool: WorkerPool
    console: "Console | None"


# The console while the broker starts; a browser shows it until the console is there.
_STARTING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Ottla</title></head><body><p>{}. This page is loaded again every few seconds.</p>
<script>setTimeout(() => location.reload(), 3000)</script></body></html>
"""

_MISDIRECTED = (
    "403 Forbidden",
    TEXT,
    b"not served under this name; use an address, or add the name to ottla.metrics.hosts\n",
)


class HttpEndpoint:
    """Serves health checks and the state from its start on, all metrics and the console later."""

    def __init__(
        self,
        *,
        healthy: Check,
        ready: Check,
        warnings: Callable[[], Sequence[str]] = tuple,
        status: Callable[[], Mapping[str, Any]] = dict,
        first_metrics: MetricsRegistry | None = None,
        hosts: Iterable[str] = (),
        relay: Relay | None = None,
    ) -> None:
        """`healthy`: whether the process should live on; `ready`: whether clients may come;
        `warnings` are in the response to /readyz, after `ok`; `status` is the response to /statusz.
        `first_metrics` are served until there are all (`serve`). `hosts` are the names of this
        machine that requests for metrics and state may have, beside its own. `relay` responds to
        what is neither a check nor the state, instead of `serve`."""
        self._checks = {"/healthz": healthy, "/livez": healthy, "/readyz": ready}
        self._warnings = warnings
        self._status = status
        self._first_metrics = first_metrics
        self._hosts = HostNames(hosts)
        self._relay = relay
        self._is_behind_supervisor = False
        self._content: Content | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        # Connections without a whole request by address, the oldest first.
        self._waiting: dict[asyncio.StreamWriter, str] = {}
        self._responding = 0
        self._server: asyncio.Server | None = None
        self._process: CollectorRegistry | None = None  # memory, CPU, descriptors
        self._scrape: asyncio.Task[tuple[str, str, bytes]] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 picks a free one. Returns the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._serve, host or None, port, limit=MAX_REQUEST_BYTES
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start_unix(self, path: str) -> None:
        """Listen on a Unix socket for the supervisor of this worker, which tells the addresses of
        its clients. Raises OSError."""
        self._is_behind_supervisor = True
        self._server = await asyncio.start_unix_server(self._serve, path, limit=MAX_REQUEST_BYTES)

    def serve(
        self,
        registry: MetricsRegistry,
        channel: RequestChannel,
        worker_pool: WorkerPool,
        console: "Console | None" = None,
    ) -> None:
        """Serve all metrics and the console from now on; before, the console gets 503 and why."""
        self._content = Content(registry, channel, worker_pool, console)
        if console is not None:
            console.start()

    @property
    def registry(self) -> MetricsRegistry | None:
        """The registry of /metrics; None before `serve`."""
        return None if self._content is None else self._content.registry

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
            for writer in self._clients:
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None
            if self._scrape is not None:
                await stop(self._scrape)
            if self._content is not None and self._content.console is not None:
                await self._content.console.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            head = await self._read_head(reader, writer)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._serve_request(head, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # closed, too slow, or not HTTP: no response is possible
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _read_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        waiting = self._waiting
        if len(waiting) >= MAX_WAITING:
            most, _ = Counter(waiting.values()).most_common(1)[0]
            oldest = next(each for each, address in waiting.items() if address == most)
            del waiting[oldest]
            oldest.transport.abort()
        waiting[writer] = _peer(writer)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                return await reader.readuntil(b"\r\n\r\n")
        finally:
            waiting.pop(writer, None)

    async def _serve_request(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return
        method, target, _ = words
        path, _, query = target.partition("?")
        content = self._content
        console = None if content is None else content.console
        more_headers = ""
        is_counted = path not in self._checks
        if is_counted and self._responding >= MAX_CLIENTS:
            await _send(writer, method, "503 Service Unavailable", TEXT, b"too many requests\n")
            return
        self._responding += is_counted
        peer = _told_peer(head) if self._is_behind_supervisor else _peer(writer)
        try:
            is_relayed = self._relay is not None and is_counted and path != "/statusz"
            if self._relay is not None and is_relayed and self._may_relay(path, head):
                await self._relay(head, reader, writer, path)
                return
            if console is not None and method in console.METHODS and console.handles(path):
                more_headers = console.headers
                request = _console_request(method, (path, query), head, reader, peer)
                status, content_type, body = await console.respond(request)
            elif is_counted and not self._hosts.permit(head):
                status, content_type, body = _MISDIRECTED
            else:
                status, content_type, body = await self._respond(
                    method, path, for_browser=_accepts_html(head)
                )
            await _send(writer, method, status, content_type, body, more_headers)
        except OSError:  # the timeout, too
            raise
        except Exception:
            logger.exception("The HTTP port cannot respond to %s %s", method, path)
            await _send(writer, method, "500 Internal Server Error", TEXT, b"see the log\n")
        finally:
            self._responding -= is_counted

    def _may_relay(self, path: str, head: bytes) -> bool:
        """The console checks the name by which it is called itself."""
        return not path.startswith("/metrics") or self._hosts.permit(head)

    async def _respond(
        self, method: str, path: str, *, for_browser: bool
    ) -> tuple[str, str, bytes]:
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", TEXT, b"only GET and HEAD\n"
        check = self._checks.get(path)
        if check is not None:
            problem = check()
            if problem is None:
                lines = ["ok", *(self._warnings() if path == "/readyz" else ())]
                return "200 OK", TEXT, "".join(f"{line}\n" for line in lines).encode()
            return "503 Service Unavailable", TEXT, f"{problem}\n".encode()
        if path == "/statusz":
            return "200 OK", JSON, json.dumps(self._status(), indent=2).encode() + b"\n"
        content = self._content
        if content is None and path == "/metrics" and self._first_metrics is not None:
            return "200 OK", METRICS, render(await read_metrics(self._first_metrics))
        if content is None:
            reason = self._checks["/readyz"]() or "the broker is starting"
            if for_browser and (path == "/" or path.startswith("/console")):
                return "503 Service Unavailable", HTML, _STARTING.format(escape(reason)).encode()
            return "503 Service Unavailable", TEXT, f"{reason}\n".encode()
        if path == "/metrics":
            return await self._metrics(content)
        return "404 Not Found", TEXT, b"there are /metrics, /healthz, /livez, /readyz, /statusz\n"

    async def _metrics(self, content: Content) -> tuple[str, str, bytes]:
        """Requests at the same time share one reading of the metrics, so that many of them hold the
        event loop no longer than one."""
        scrape = self._scrape
        if scrape is None:
            scrape = self._scrape = spawn(self._scrape_all(content), name="scrape")
        # A client that closes its connection does not end the scrape of the others.
        return await asyncio.shield(scrape)

    async def _scrape_all(self, content: Content) -> tuple[str, str, bytes]:
        try:
            return await self._make_metrics(content)
        finally:
            self._scrape = None

    async def _make_metrics(self, content: Content) -> tuple[str, str, bytes]:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        process = self._process
        if process is None:
            process = self._process = CollectorRegistry()
            ProcessCollector(registry=process)
        # The numbers are read here, on the loop that changes them; the text is made elsewhere.
        readings = await read_metrics(content.registry)
        text = await content.worker_pool.run(lambda: render(readings) + generate_latest(process))
        return "200 OK", CONTENT_TYPE_LATEST, text


async def _send(
    writer: asyncio.StreamWriter,
    method: str,
    status: str,
    content_type: str,
    body: bytes,
    more_headers: str = "",
) -> None:
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{more_headers}Connection: close\r\n\r\n".encode()
    )
    if method != "HEAD":
        writer.write(body)
    await writer.drain()


def _console_request(
    method: str,
    target: tuple[str, str],
    head: bytes,
    reader: asyncio.StreamReader,
    peer: str,
) -> "ConsoleRequest":
    """`target` is path and query, `peer` the address of the client."""
    from ottla.broker.observability.console.access import ACTION_HEADER, ConsoleRequest, Refused

    headers: dict[str, str] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        name = name.strip().lower()
        # Of two names of this machine none is believed.
        headers[name] = "" if name in headers else value.strip()

    async def body() -> bytes:
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= 12):
            raise Refused("411 Length Required", "the request has no Content-Length")
        if int(length) > MAX_BODY_BYTES:
            raise Refused(
                "413 Content Too Large", f"a request has {MAX_BODY_BYTES} bytes at the most"
            )
        return await reader.readexactly(int(length))

    return ConsoleRequest(
        path=target[0],
        query=target[1],
        host=headers.get("host", ""),
        authorization=headers.get("authorization", ""),
        peer=peer,
        method=method,
        origin=headers.get("origin", ""),
        content_type=headers.get("content-type", ""),
        action=headers.get(ACTION_HEADER.lower(), ""),
        body=body,
    )


PEER_HEADER = b"Ottla-Peer: "
"""The first header of what a supervisor relays to a worker: the address of the client."""


def _accepts_html(head: bytes) -> bool:
    """Whether a browser shows what is sent."""
    return any(
        name.strip().lower() == b"accept" and b"text/html" in value
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    )


def _told_peer(head: bytes) -> str:
    first = head.split(b"\r\n", 2)[1]
    return first.removeprefix(PEER_HEADER).decode("latin-1") if PEER_HEADER in first else ""


def _peer(writer: asyncio.StreamWriter) -> str:
    """The address of the client."""
    return str((writer.get_extra_info("peername") or ("",))[0])
