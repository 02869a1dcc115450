import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from ottla.broker.metrics.statistics import STAGES, MetricsRegistry
from ottla.broker.observability import http_endpoint as http_module
from ottla.broker.observability.http_endpoint import HttpEndpoint
from ottla.broker.observability.metrics_sources import (
    add_network,
    add_process,
    add_purgatories,
    add_requests,
)
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.doubles.eventually import eventually_async
from tests.doubles.manual_timer import ManualTimer
from tests.doubles.network import Network, metadata_request, running_network


class Endpoint:
    def __init__(self, network: Network) -> None:
        self.registry = MetricsRegistry()
        self.problem: str | None = None
        self.warnings: list[str] = []
        self.endpoint = HttpEndpoint(
            healthy=lambda: None,
            ready=lambda: self.problem,
            warnings=lambda: self.warnings,
            hosts=["broker1"],
        )
        self.endpoint.serve(self.registry, network.channel, network.pool)
        self.port = 0

    async def send(self, request: bytes) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        try:
            async with asyncio.timeout(20):
                return (await reader.read()).decode()
        except ConnectionResetError:  # closed before it had read what we sent
            return ""
        finally:
            writer.close()
            with suppress(ConnectionResetError):
                await writer.wait_closed()

    async def get(self, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[str, str]:
        """Status line and body."""
        response = await self.send(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = response.partition("\r\n\r\n")
        return head.split("\r\n")[0], body


@asynccontextmanager
async def running_endpoint(network: Network) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(network)
    endpoint.port = await endpoint.endpoint.start("127.0.0.1", 0)
    try:
        yield endpoint
    finally:
        await endpoint.endpoint.close()


async def test_metrics_of_a_running_broker() -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        purgatory = Purgatory("Fetch", ManualTimer())
        add_network(endpoint.registry, network.server)
        add_requests(endpoint.registry, network.channel)
        add_purgatories(endpoint.registry, [purgatory])
        add_process(endpoint.registry, network.pool)
        client = await network.connect()
        await client.ask(ApiVersionsRequest("my-client", "1.0"), 3)
        for _ in range(3):
            await client.ask(metadata_request(), 1)
        network.channel.stalls.record("Fetch", 0.1)

        status, body = await endpoint.get("/metrics?name[]=x")
        assert status == "HTTP/1.1 200 OK"
        lines = body.splitlines()
        for line in (
            'ottla_requests_total{api="Metadata",version="1"} 3.0',
            'ottla_request_seconds_count{api="Metadata"} 3.0',
            'ottla_request_seconds_bucket{api="Metadata",le="+Inf"} 3.0',
            'ottla_connections_open{listener="PLAINTEXT"} 1.0',
            'ottla_client_software_connections{name="my-client",version="1.0"} 1.0',
            'ottla_purgatory_delayed{purgatory="Fetch"} 0.0',
            'ottla_loop_stalls_total{name="Fetch"} 1.0',
            "ottla_connections_accepted_total 1.0",
            "ottla_request_queue_size 0.0",
            "ottla_sendfile_bytes_total 0.0",
        ):
            assert line in lines
        received = [line for line in lines if line.startswith("ottla_network_received_bytes_total")]
        assert float(received[0].split()[1]) == network.statistics.bytes_in
        assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
        for stage in STAGES:
            labels = f'{{api="Metadata",stage="{stage}"}}'
            assert f"ottla_request_stage_seconds_count{labels} 3.0" in lines


async def test_a_metric_that_cannot_be_read_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        endpoint.registry.gauge("ottla_broken", "Broken.", lambda: 1 // 0)
        endpoint.registry.gauge("ottla_whole", "Whole.", lambda: 5)
        _, body = await endpoint.get("/metrics")
        assert "ottla_whole 5.0" in body
        assert "ottla_broken" not in body
        assert "metric ottla_broken cannot be read" in caplog.text


async def test_scrapes_at_the_same_time_read_the_metrics_once() -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        readings = 0
        released = asyncio.Event()

        def read() -> float:
            nonlocal readings
            readings += 1
            return readings

        async def run_later(function: Callable[[], bytes]) -> bytes:
            await released.wait()
            return function()

        endpoint.registry.gauge("ottla_readings", "Readings.", read)
        network.pool.run = run_later  # type: ignore[method-assign,assignment]
        async with asyncio.TaskGroup() as group:
            scrapes = [group.create_task(endpoint.get("/metrics")) for _ in range(4)]
            await eventually_async(lambda: endpoint.endpoint._responding == 4)
            released.set()
        assert {"ottla_readings 1.0" in scrape.result()[1] for scrape in scrapes} == {True}
        assert "ottla_readings 2.0" in (await endpoint.get("/metrics"))[1]


async def test_probes() -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        assert await endpoint.get("/healthz") == ("HTTP/1.1 200 OK", "ok\n")
        assert await endpoint.get("/readyz") == ("HTTP/1.1 200 OK", "ok\n")
        endpoint.problem = "logs are being loaded"
        assert await endpoint.get("/readyz") == (
            "HTTP/1.1 503 Service Unavailable",
            "logs are being loaded\n",
        )


async def test_a_browser_waits_for_the_console_of_a_broker_that_starts() -> None:
    endpoint = HttpEndpoint(healthy=lambda: None, ready=lambda: "the broker is <loading>")
    port = await endpoint.start("127.0.0.1", 0)
    try:
        for accept, is_page in (("text/html,*/*", True), ("*/*", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"GET /console HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\n\r\n"
            writer.write(head.encode())
            found = (await reader.read()).decode()
            writer.close()
            assert found.startswith("HTTP/1.1 503 ")
            assert ("location.reload()" in found, "text/html" in found) == (is_page, is_page)
            assert ("the broker is &lt;loading&gt;" in found) == is_page
    finally:
        await endpoint.close()


async def test_a_check_that_fails_is_an_error_with_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        endpoint.endpoint._checks["/readyz"] = lambda: str(1 // 0)
        assert (await endpoint.get("/readyz"))[0] == "HTTP/1.1 500 Internal Server Error"
        assert "cannot respond to GET /readyz" in caplog.text


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/healthz", "HEAD", "HTTP/1.1 200 OK"),
        ("/healthz", "POST", "HTTP/1.1 405 Method Not Allowed"),
        ("/", "GET", "HTTP/1.1 404 Not Found"),
    ],
)
async def test_other_requests(path: str, method: str, status: str) -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        found, body = await endpoint.get(path, method)
        assert found == status
        assert bool(body) == (method != "HEAD")


@pytest.mark.parametrize("nonsense", [b"\x00\x01\x02\r\n\r\n", b"x" * 40_000, b"GET /\r\n\r\n"])
async def test_what_is_not_http_is_closed(nonsense: bytes) -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        assert await endpoint.send(nonsense) == ""
        assert (await endpoint.get("/healthz"))[1] == "ok\n"


async def test_slow_clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        with monkeypatch.context() as patch:
            patch.setattr(http_module, "REQUEST_TIMEOUT_SECONDS", 0.03)
            responses = await asyncio.gather(*(endpoint.send(b"GET /hea") for _ in range(5)))
        assert responses == [""] * 5
        assert (await endpoint.get("/healthz"))[1] == "ok\n"


async def test_probes_are_served_beside_many_slow_clients() -> None:
    """The oldest connections of the address with the most of them are closed instead."""
    async with running_network() as network, running_endpoint(network) as endpoint:
        slow = []
        for number in range(3 * http_module.MAX_WAITING):
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
            slow.append((reader, writer))
            if number % 50 == 0:
                for path in ("/healthz", "/livez", "/readyz"):
                    assert (await endpoint.get(path))[1] == "ok\n"
        await network.until(lambda: len(endpoint.endpoint._waiting) == http_module.MAX_WAITING)
        # The first one is closed, the last one is not.
        with suppress(ConnectionResetError):
            assert await slow[0][0].read() == b""
        slow[-1][1].write(b"\r\n\r\n")
        assert (await slow[-1][0].read()).endswith(b"ok\n")
        for _, writer in slow:
            writer.transport.abort()
        await network.until(lambda: not endpoint.endpoint._waiting)


async def test_probes_are_served_beside_as_many_responses_as_there_may_be() -> None:
    async with running_network() as network, running_endpoint(network) as endpoint:
        endpoint.endpoint._responding = http_module.MAX_CLIENTS
        assert (await endpoint.get("/metrics"))[0] == "HTTP/1.1 503 Service Unavailable"
        assert (await endpoint.get("/readyz"))[1] == "ok\n"
        endpoint.endpoint._responding = 0
        assert (await endpoint.get("/metrics"))[0] == "HTTP/1.1 200 OK"
        await network.until(lambda: endpoint.endpoint._responding == 0)


async def test_close_disconnects_clients() -> None:
    async with running_network() as network:
        async with running_endpoint(network) as endpoint:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(b"GET /hea")
            await network.until(lambda: bool(endpoint.endpoint._clients))
        async with asyncio.timeout(20):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()
        await network.until(lambda: not endpoint.endpoint._clients)


async def test_a_name_that_is_not_this_machine_gets_no_metrics() -> None:
    """A name that a web page points at this machine (DNS rebinding)."""
    async with running_network() as network, running_endpoint(network) as endpoint:
        for path in ("/metrics", "/statusz"):
            status, body = await endpoint.get(path, host="rebound.example.org:9404")
            assert status == "HTTP/1.1 403 Forbidden"
            assert "ottla.metrics.hosts" in body
            for host in ("localhost", "Broker1:9404", "[::1]:9404", "10.1.2.3:9404"):
                status, _ = await endpoint.get(path, host=host)
                assert status == "HTTP/1.1 200 OK"
        status, _ = await endpoint.get("/readyz", host="probe.example.org")
        assert status == "HTTP/1.1 200 OK"
