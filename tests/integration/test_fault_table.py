"""Each fault, and what every place that reports the state says of it.

The table of docs/operations.md is what this test sees: it compares the two. After a change write it
again with `python -m tests.integration.test_fault_table`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ottla.broker.cluster.metadata_cache import MetadataSnapshot
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.dynamic_rules import IgnoredSetting
from ottla.broker.config.unusable_znodes import UnusableZnode
from ottla.broker.net.descriptors import DescriptorReserve
from ottla.broker.observability.broker_state import BrokerState
from ottla.broker.observability.faults import (
    broker_id_fault,
    deletion_faults,
    dynamic_setting_faults,
    held_log_faults,
    kraft_fault,
    leader_epoch_fault,
    older_tree_fault,
    security_znode_faults,
    topic_znode_faults,
)
from ottla.broker.runtime.tasks import spawn
from ottla.broker.server.broker_server import BrokerServer
from ottla.cli.health import Unhealthy
from ottla.cli.healthcheck import check
from ottla.cli.zookeeper_server import free_port
from ottla.controller.tree.tree_file import WriteProblem
from ottla.controller.zookeeper_server.server import ZooKeeperServer
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.set_aside import of_files
from tests.doubles.alert_rules import firing
from tests.doubles.broker_process import start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually_async

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"

# The alerts that are about the state of one broker, in the order of the file.
ALERTS = (
    *("OttlaBrokerDown", "OttlaBrokerNotReady", "OttlaNoController"),
    *("OttlaLogDirectoryRejectsRecords", "OttlaZooKeeperDisconnected", "OttlaZnodeFileUnwritable"),
    *("OttlaCertificateExpired", "OttlaCertificateExpires", "OttlaCertificateRenewalRejected"),
    *("OttlaFewFileDescriptorsLeft", "OttlaEventLoopBlocked", "OttlaRemoteStorageFails"),
    *("OttlaRecordsSetAside", "OttlaReplicasNotServed", "OttlaZnodesUnusable"),
)
DAY_SECONDS = 86_400
# The certificate of the test is valid from yesterday on.
VALID_DAYS = 60

NO_RESPONSE = "no response"


class Row(NamedTuple):
    """What was observed."""

    fault: str
    readyz: str
    healthcheck: str
    healthz: str
    metrics: str
    doctor: str
    console: str
    alerts: str


class Target:
    """A broker as its operator sees it: its HTTP port and its first listener."""

    def __init__(self, http_port: int, port: int) -> None:
        self.http_port = http_port
        self.port = port

    async def get(self, path: str, seconds: float = 30.0) -> tuple[int, str]:
        """Status and body; 0 without a response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http_port)
        try:
            async with asyncio.timeout(seconds):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        except TimeoutError:
            return 0, ""
        finally:
            writer.close()
            await writer.wait_closed()
        return int(head.split(" ")[1]), body

    async def observe(self, fault: str, text: str, *, seconds: float = 30.0) -> Row:
        """`text` is what readyz, doctor and console say of the fault where they name it."""
        status, body = await self.get("/readyz", seconds)
        readyz = NO_RESPONSE if not status else str(status)
        if status:
            assert text in body, (fault, status, body)
        healthz, _ = await self.get("/healthz", seconds)
        scraped, scrape = await self.get("/metrics", seconds)
        doctor = await asyncio.to_thread(self._doctor, seconds)
        assert any(text in each["finding"] for each in doctor), (fault, doctor)
        named = [each for each in doctor if text in each["finding"]]
        assert all(each["advice"] and each["result"] == "PROBLEM" for each in named), doctor
        alerts = firing(scrape if scraped == 200 else None, ALERTS)
        return Row(
            fault,
            readyz,
            await asyncio.to_thread(self._healthcheck, text, status, seconds),
            NO_RESPONSE if not healthz else str(healthz),
            _metrics_of(scrape) if scraped == 200 else NO_RESPONSE,
            "names it",
            await self._console(text, seconds),
            ", ".join(f"`{name}`" for name in alerts) or "none",
        )

    def _healthcheck(self, text: str, status: int, seconds: float) -> str:
        """It agrees with /readyz."""
        options = {"http": f"127.0.0.1:{self.http_port}", "timeout": str(seconds)}
        options["bootstrap"] = f"127.0.0.1:{self.port}"
        try:
            found: Any = check(options, {})
        except Unhealthy as error:
            assert status != 200
            if not status:
                return f"{error.code}, {NO_RESPONSE}"
            return f"{error.code}, {'names it' if text in str(error) else error}"
        assert status == 200
        assert any(text in warning for warning in found["warnings"]), found
        return "0, names it"

    def _doctor(self, seconds: float) -> list[dict[str, str]]:
        options = ["--json", "--wait", str(seconds), "--timeout", str(seconds)]
        options += ["--http", f"127.0.0.1:{self.http_port}"]
        done = CommandLine(f"127.0.0.1:{self.port}")("doctor", *options)
        assert done.code in (1, 3), done
        checks: list[dict[str, str]] = done.value["checks"]
        return checks

    async def _console(self, text: str, seconds: float) -> str:
        status, body = await self.get("/api/overview", seconds)
        if not status:
            return NO_RESPONSE
        if status == 503:
            assert text in body
            return "503, names it"
        problems = [each["problem"] for each in json.loads(body)["state"]["faults"]]
        assert any(text in problem for problem in problems), problems
        return "names it"


def _metrics_of(scrape: str) -> str:
    """The series that have another value than in a healthy broker."""
    lines = [line for line in scrape.splitlines() if line.startswith("ottla_faults{")]
    found = [line.rpartition(" ")[0] for line in lines if not line.endswith(" 0.0")]
    if "\nottla_ready 0.0\n" in scrape:
        found.append("ottla_ready 0")
    return ", ".join(f"`{each}`" for each in found)


def settings(directory: Path, zookeeper_port: int) -> dict[str, str]:
    certificates = Certificates(directory)
    certificates.issue("server", not_after=datetime.now(UTC) + timedelta(days=VALID_DAYS))
    return {
        "log.dirs": f"{directory / 'one'},{directory / 'two'}",
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "listener.name.ssl.ssl.keystore.type": "PEM",
        "listener.name.ssl.ssl.keystore.location": str(certificates.server_path),
        "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
        "zookeeper.session.timeout.ms": "18000",
        "zookeeper.connection.timeout.ms": "60000",
        "ottla.metrics.address": "127.0.0.1:0",
        "ottla.console.enable": "true",
    }


async def until(target: Target, text: str) -> None:
    """Returns when the response to /readyz has the text."""
    async with asyncio.timeout(60):
        body = ""
        while text not in body:
            _, body = await target.get("/readyz")


def state_of(server: BrokerServer) -> BrokerState:
    """The state of a broker that starts or runs."""
    assert server._state is not None
    return server._state


class Faults:
    """Brings about one fault after the other in a broker of this process."""

    def __init__(self, server: BrokerServer, target: Target, zookeeper: ZooKeeperServer) -> None:
        self.server = server
        self.target = target
        self.zookeeper = zookeeper
        self.zookeeper_port = int(server.config.zookeeper_connect.rpartition(":")[2])
        self.rows: list[Row] = []
        self.state = state_of(server)

    def show_time(self, offset_seconds: float) -> None:
        """Certificates are judged as at another time."""
        self.state._now = lambda: time.time() + offset_seconds

    async def see(self, fault: str, text: str) -> None:
        self.rows.append(await self.target.observe(fault, text))

    async def is_healthy(self) -> None:
        """No place reports a fault of the one before."""
        assert await self.target.get("/readyz") == (200, "ok\n")
        scrape = (await self.target.get("/metrics"))[1]
        assert firing(scrape, ALERTS) == []
        assert _metrics_of(scrape) == ""
        document = json.loads((await self.target.get("/statusz"))[1])
        assert (document["ready"], document["faults"]) == (True, [])

    async def directories(self) -> None:
        first, second = self.server.parts.logs.directories.all
        for each in (first, second):
            each.mark_full("no room")
            which = "each directory" if each is second else "a directory of several"
            await self.see(f"{which} is full", f"log directory {each.path} accepts no records")
        for each in (first, second):
            each.update_free_bytes(1 << 40, 0)
        await self.is_healthy()

    async def controller(self) -> None:
        metadata = self.server.parts.metadata
        known = metadata.snapshot
        metadata.snapshot = MetadataSnapshot(
            known.brokers, known.topics, known.topic_names, (-1, known.controller_epoch)
        )
        await self.see("no controller", "the cluster has no controller")
        metadata.snapshot = known
        await self.is_healthy()
        observed = self.state.observed
        assert observed is not None
        self.state.observed = observed._replace(
            controller_id=lambda: -1, elected_controller=lambda: (7, "SSL://nowhere.invalid:9093")
        )
        await self.see(
            "the controller cannot reach the broker", "which is registered at SSL://nowhere"
        )
        self.state.observed = observed
        await self.is_healthy()

    async def certificates(self) -> None:
        self.show_time((VALID_DAYS - 3) * DAY_SECONDS)
        await self.see("a certificate expires soon", "the certificate of listener SSL expires in")
        self.show_time((VALID_DAYS + 3) * DAY_SECONDS)
        await self.see("a certificate of one listener has expired", "listener SSL expired")
        self.show_time(-3 * DAY_SECONDS)
        await self.see(
            "a certificate of one listener is not valid yet", "listener SSL is not valid yet"
        )
        self.show_time(0)
        await self.is_healthy()

    async def renewal(self) -> None:
        tls = self.server.parts.tls
        content = self._replace_keys(b"no key")
        tls.check()
        await self.see("a new certificate cannot be used", "listener SSL keeps its previous")
        self._replace_keys(content)
        tls.check()
        await self.is_healthy()

    async def at_the_start(self) -> None:
        """What only a start can find: a running broker keeps a good certificate."""
        tls = self.server.parts.tls
        (watched,) = tls.listeners()._watched.values()
        before = watched.current
        watched.current = before._replace(server=before.server._replace(unusable="another key"))
        await self.see("a key is that of another certificate", "no client can connect to listener")
        watched.current = before
        watched._incomplete = "no issuer"
        await self.see("a certificate comes without its issuer", "clients may reject the")
        tls.listeners().settings_changed(["listener.name.ssl.ssl.keystore.location"])
        await self.is_healthy()

    def _replace_keys(self, content: bytes) -> bytes:
        """Returns the previous content."""
        path = self.server.config.effective_text("listener.name.ssl.ssl.keystore.location")
        assert path is not None
        previous = Path(path).read_bytes()
        Path(path).write_bytes(content)
        return previous

    async def descriptors(self) -> None:
        services = self.server.parts.network_server._services
        assert services is not None
        before = services.descriptors
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
        used = before.state(replaceable=False).used
        # 32 are reserved. The requests of this test need some of those that are left.
        services.descriptors = DescriptorReserve(used + 20 + 32)
        await self.see("few descriptors are left", f" of {used + 52} file descriptors are in use")
        services.descriptors = DescriptorReserve(used - 20 + 32)
        await self.see("no descriptors are left for clients", "connections of clients are refused")
        services.descriptors = before
        for descriptor in taken:
            os.close(descriptor)
        await self.is_healthy()

    async def loop(self) -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 1.2:
            pass
        health = self.server.parts.stalls.health
        await eventually_async(lambda: health.longest() is not None)
        await self.see("the event loop was blocked", "blocked the event loop for")
        health._turns.clear()
        await self.is_healthy()

    async def remote_storage(self) -> None:
        observed = self.state.observed
        assert observed is not None
        self.state.observed = observed._replace(remote_storage=lambda: "Connection refused")
        await self.see("remote storage fails", "remote storage fails, and segments stay")
        self.state.observed = observed
        await self.is_healthy()

    async def set_aside(self) -> None:
        directory = self.server.parts.logs.directories.all[0]
        log = Path(directory.path) / "orders-0"
        log.mkdir()
        name = f"{0:020d}.log.damaged.set-aside"
        (log / name).touch()
        directory.note_set_aside(of_files([name], str(log), "orders", 0))
        await self.see("records are set aside", "they may have no other copy: orders-0")
        (log / name).unlink()
        log.rmdir()
        logs = self.server.parts.logs
        logs.forget_restored(logs.find_restored())
        await self.is_healthy()

    async def replicas(self) -> None:
        """Where ZooKeeper and the logs disagree; test_rewritten_topics has them for real."""
        observed = self.state.observed
        assert observed is not None
        held = ("/data/orders-0", "another topic id in ZooKeeper", "see docs/operations.md")
        unusable = {"orders": ("the znode of topic orders has no topic id", "write it")}
        found = {
            "another broker has the id": broker_id_fault("Broker id 1 is already registered"),
            "a KRaft controller has taken over": kraft_fault("The KRaft controller 9 has"),
            "the deletion of a topic waits": deletion_faults({"orders": "broker 2"})[0],
            "ZooKeeper is an older copy": older_tree_fault(1 << 32),
            "leader epochs are ahead of ZooKeeper": leader_epoch_fault(["orders-0"]),
            "a log is not served": held_log_faults([held])[0],
            "the znode of a topic is unusable": topic_znode_faults(unusable)[0],
        }
        for name, fault in found.items():
            assert fault is not None
            faults = [fault]
            self.state.observed = observed._replace(replicas=lambda faults=faults: faults)
            await self.see(name, fault.problem)
        self.state.observed = observed
        await self.is_healthy()

    async def settings(self) -> None:
        """Znodes that cannot be used; test_settings_in_the_tree has them for real."""
        observed = self.state.observed
        assert observed is not None
        path = "/kafka-acl/Topic/orders"
        unusable = {path: UnusableZnode(f"{path} does not hold JSON", "everything is denied")}
        ignored = [IgnoredSetting("max.connections", False, "0 would refuse every connection")]
        found = {
            "an ACL, a quota, a token or the settings of a topic cannot be read": (
                security_znode_faults(unusable, len(unusable))[0]
            ),
            "a dynamic setting is not used": dynamic_setting_faults(ignored, 1)[0],
        }
        for name, fault in found.items():
            faults = [fault]
            self.state.observed = observed._replace(settings=lambda faults=faults: faults)
            await self.see(name, fault.problem)
        self.state.observed = observed
        await self.is_healthy()

    async def znode_file(self) -> None:
        """Of a broker without ZooKeeper."""
        found = WriteProblem("the znode file /d cannot be written: no space", "free disk space")
        self.state._write_problem = lambda: found
        await self.see("the znode file cannot be written", found.problem)
        self.state._write_problem = lambda: None
        await self.is_healthy()

    async def zookeeper_away(self) -> None:
        await self.zookeeper.stop()
        await until(self.target, "ZooKeeper is not connected")
        await self.see("ZooKeeper is away", "ZooKeeper is not connected")
        await self.zookeeper.start(port=self.zookeeper_port)
        await eventually_async(lambda: self.state.zookeeper_connected)
        await self.is_healthy()

    async def offline(self) -> None:
        """At last: it stays so until a restart."""
        first, _ = self.server.parts.logs.directories.all
        first.fail(OSError(5, "Input/output error"))
        await self.see("a directory of several is offline", "Input/output error")


@asynccontextmanager
async def starting_broker(
    directory: Path, rows: list[Row]
) -> AsyncIterator[tuple[BrokerServer, Target, ZooKeeperServer]]:
    """Rows of the phases of its start, then the broker that runs."""
    zookeeper_port = free_port()
    server = BrokerServer(BrokerConfig(settings(directory, zookeeper_port)), lambda: None)
    may_load, load = threading.Event(), LogManager.load

    def load_when_allowed(logs: LogManager, *arguments: Any, **options: Any) -> None:
        part = options["progress"].of_directory("/data")
        part.logs, part.loaded_logs, part.recovery_bytes = 9, 2, 40 << 20
        part.add_recovered(5 << 20)
        assert may_load.wait(60)
        load(logs, *arguments, **options)

    LogManager.load = load_when_allowed  # type: ignore[method-assign]
    zookeeper = ZooKeeperServer(tick_time_ms=1000)
    starting = spawn(server.start(), name="start")
    try:
        await eventually_async(lambda: server.metrics_port > 0)
        target = Target(server.metrics_port, 1)
        await until(target, "the broker waits for ZooKeeper")
        rows.append(
            await target.observe("ZooKeeper is away at the start", "the broker waits for ZooKeeper")
        )
        await zookeeper.start(port=zookeeper_port)
        await until(target, "2 of 9 logs are loaded, recovery has read 5 of 40 MiB")
        rows.append(
            await target.observe(
                "recovery runs", "2 of 9 logs are loaded, recovery has read 5 of 40 MiB"
            )
        )
        may_load.set()
        ports = await starting
        yield server, Target(server.metrics_port, ports["PLAINTEXT"]), zookeeper
    finally:
        LogManager.load = load  # type: ignore[method-assign]
        may_load.set()
        await server.stop(crash=True)
        await zookeeper.stop()


async def in_process(directory: Path) -> list[Row]:
    rows: list[Row] = []
    async with starting_broker(directory, rows) as (server, target, zookeeper):
        faults = Faults(server, target, zookeeper)
        await server.parts.scheduler.stop()  # it would find that the disks have room
        await faults.is_healthy()
        steps: list[Callable[[], Awaitable[None]]] = [
            *(faults.directories, faults.controller, faults.certificates, faults.renewal),
            faults.at_the_start,
            *(faults.descriptors, faults.loop, faults.remote_storage, faults.set_aside),
            *(
                faults.replicas,
                faults.settings,
                faults.znode_file,
                faults.zookeeper_away,
                faults.offline,
            ),
        ]
        for step in steps:
            await step()
        return rows + faults.rows


async def stopped_process(directory: Path) -> list[Row]:
    """A loop that does not come back: the process is stopped with SIGSTOP."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with start_broker(
        directory, ottla_metrics_address=address, ottla_console_enable="true"
    ) as broker:
        target = Target(port, broker.port)
        assert await target.get("/readyz") == (200, "ok\n")
        broker.send_signal(signal.SIGSTOP)
        return [await target.observe("the event loop is blocked", "no response", seconds=0.3)]


async def observed(directory: Path) -> str:
    """The table as Markdown."""
    for name in ("one", "two"):
        (directory / name).mkdir()
    rows = await in_process(directory / "one") + await stopped_process(directory / "two")
    heading = ["fault", "`/readyz`", "`ottla healthcheck`", "`/healthz`", "`/metrics`"]
    heading += ["`ottla doctor`", "console", "alerts"]
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _around(page: str) -> tuple[str, str, str]:
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table, after


async def test_the_table_of_the_documentation_is_what_is_seen(tmp_path: Path) -> None:
    _, documented, _ = _around(PAGE.read_text())
    assert (await observed(tmp_path)).splitlines() == documented.splitlines()


if __name__ == "__main__":
    before, _, after = _around(PAGE.read_text())
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(f"{before}{BEGIN}{asyncio.run(observed(Path(folder)))}{END}{after}")
