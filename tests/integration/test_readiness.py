"""/readyz of a whole broker: while it starts, while a disk is full, while ZooKeeper is away."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.net.listener import PortInUse
from ottla.broker.runtime.tasks import spawn
from ottla.broker.server import broker_server
from ottla.broker.server.broker_server import BrokerServer
from ottla.cli.healthcheck import main as healthcheck
from ottla.cli.zookeeper_server import free_port
from ottla.controller.zookeeper_server.server import ZooKeeperServer
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.broker_process import ROOT
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually, eventually_async


def broker(tmp_path: Path, **settings: object) -> BrokerServer:
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    config = BrokerConfig(
        {
            "log.dirs": str(tmp_path / "data"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "ottla.metrics.address": "127.0.0.1:0",
            **texts,
        }
    )
    return BrokerServer(config, lambda: None)


async def get(server: BrokerServer, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.metrics_port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    async with asyncio.timeout(30):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split(" ")[1]), body


async def until(server: BrokerServer, start: str) -> None:
    """Returns when the response to /readyz begins like this."""
    async with asyncio.timeout(60):
        while True:
            if (await get(server, "/readyz"))[1].startswith(start):
                return
            await asyncio.sleep(0.01)


async def test_while_it_waits_for_zookeeper_and_after(tmp_path: Path) -> None:
    port = free_port()
    server = broker(
        tmp_path,
        zookeeper_connect=f"127.0.0.1:{port}",
        zookeeper_session_timeout_ms=18_000,
        zookeeper_connection_timeout_ms=60_000,
    )
    starting = spawn(server.start(), name="start")
    await eventually_async(lambda: server.metrics_port > 0)
    waiting = (503, "the broker waits for ZooKeeper\n")
    assert await get(server, "/readyz") in (waiting, (503, "the broker is starting\n"))
    await until(server, waiting[1])
    assert "ottla_ready 0.0" in (await get(server, "/metrics"))[1]
    assert await get(server, "/healthz") == (200, "ok\n")
    zookeeper = ZooKeeperServer(tick_time_ms=1000)
    await zookeeper.start(port=port)
    await starting
    assert await get(server, "/readyz") == (200, "ok\n")
    assert "ottla_zookeeper_connected 1.0" in (await get(server, "/metrics"))[1]

    await zookeeper.stop()
    await until(server, "ok\nZooKeeper is not connected: ")
    assert "ottla_zookeeper_connected 0.0" in (await get(server, "/metrics"))[1]
    await server.stop(crash=True)


async def test_a_directory_that_takes_no_records(tmp_path: Path) -> None:
    server = broker(tmp_path)
    await server.start()
    assert await get(server, "/readyz") == (200, "ok\n")
    await server.parts.scheduler.stop()  # it would find that there is room
    (directory,) = server.parts.logs.directories.all
    directory.mark_full("the test says so")
    status, body = await get(server, "/readyz")
    assert (status, body) == (
        503,
        f"log directory {directory.path} accepts no records: the test says so\n",
    )
    metrics = (await get(server, "/metrics"))[1]
    assert f'ottla_log_directory_state{{path="{directory.path}",state="full"}} 1.0' in metrics
    http = f"127.0.0.1:{server.metrics_port}"
    ottla = CommandLine(f"127.0.0.1:{server.ports['PLAINTEXT']}")
    shown = await asyncio.to_thread(ottla, "log-dirs", "--http", http)
    assert (shown.code, shown.lines[1][-1]) == (1, "full")
    assert (
        shown.errors == "ottla: a log directory is full: free disk space; no restart is needed.\n"
    )
    environment = {**ottla.environment, "OTTLA_METRICS_ADDRESS": http}
    assert await asyncio.to_thread(healthcheck, ["--timeout=30"], environment) == 1
    directory.update_free_bytes(1 << 40, 0)
    assert (await asyncio.to_thread(ottla, "log-dirs", "--http", http)).code == 0
    assert await asyncio.to_thread(healthcheck, ["--timeout=30"], environment) == 0
    await server.stop()


async def test_doctor_finds_the_http_port_in_the_settings(tmp_path: Path) -> None:
    server = broker(tmp_path, ottla_metrics_address=f":{free_port()}")
    await server.start()
    ottla = CommandLine(f"127.0.0.1:{server.ports['PLAINTEXT']}")
    found = (await asyncio.to_thread(ottla.done, "doctor", "--json")).value["checks"]
    assert found[-1]["finding"] == "ready, without a fault"
    await server.parts.scheduler.stop()  # it would find that there is room
    server.parts.logs.directories.all[0].mark_full("no room")
    shown = await asyncio.to_thread(ottla, "doctor")
    assert shown.code == 1
    assert "accepts no records: no room" in shown.output
    assert "free disk space (delete topics, shorten retention.ms)" in shown.output
    await server.stop()


async def test_a_busy_metrics_port_is_noticed_before_the_data_is_touched(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    server = broker(tmp_path, ottla_metrics_address=f"127.0.0.1:{port}")
    with pytest.raises(PortInUse, match=f"cannot listen on 127.0.0.1:{port}"):
        await server.start()
    assert not (tmp_path / "data").exists()
    taken.close()
    await taken.wait_closed()


@pytest.mark.parametrize("controller_responds", [True, False])
async def test_a_stop_without_zookeeper_does_not_wait_for_the_retries(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    controller_responds: bool,
) -> None:
    """What stops a broker kills it after half a minute, as a rule: the next start would recover.

    The controller of this process responds or not, as it happens to notice that ZooKeeper is away:
    there is no partition to hand over. So one that never responds is a mock.
    """
    monkeypatch.setattr(broker_server, "_WITHOUT_ZOOKEEPER_MS", 100)
    zookeeper = ZooKeeperServer(tick_time_ms=1000)
    await zookeeper.start()
    server = broker(
        tmp_path,
        zookeeper_connect=f"127.0.0.1:{zookeeper.port}",
        controlled_shutdown_retry_backoff_ms=3_600_000,
    )
    await server.start()
    await zookeeper.stop()
    await until(server, "ok\nZooKeeper is not connected: ")
    if not controller_responds:
        channel = server.parts.controller_channel
        monkeypatch.setattr(channel, "controlled_shutdown", AsyncMock(side_effect=TimeoutError))
    async with asyncio.timeout(60):
        await server.stop()
    if not controller_responds:
        assert "without controlled shutdown: ZooKeeper is not connected" in caplog.text
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


async def test_a_start_that_recovers_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def load_for_ever(logs: LogManager, *arguments: object, **options: Any) -> None:
        try:
            part = options["progress"].of_directory("/data")
            part.logs, part.recovery_bytes = 1, 1 << 40
            while True:
                part.add_recovered(1 << 20)
                time.sleep(0.001)
        finally:
            ended.append("load")

    monkeypatch.setattr(LogManager, "load", load_for_ever)
    server = broker(tmp_path)
    starting = spawn(server.start(), name="start")
    await eventually_async(lambda: server.metrics_port > 0)
    await until(server, "the broker is loading its logs: 0 of 1 logs are loaded, recovery has read")
    server.cancel_start(starting)
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert ended == ["load"]
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


async def test_a_start_that_waits_for_zookeeper_ends_on_a_signal(tmp_path: Path) -> None:
    port, zookeeper_port = free_port(), free_port()
    settings = {
        "log.dirs": str(tmp_path / "data"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "ottla.metrics.address": f"127.0.0.1:{port}",
        "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
        "zookeeper.connection.timeout.ms": "600000",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ottla.broker"),
        *(f"--override={name}={text}" for name, text in settings.items()),
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
    )
    await asyncio.to_thread(eventually, lambda: "ZooKeeper" in readiness(port))
    process.send_signal(signal.SIGTERM)
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert "stopped because of SIGTERM, before the start was complete" in errors.decode()
    assert "Traceback" not in errors.decode()
    assert not (tmp_path / "data" / "meta.properties").exists()


def readiness(port: int) -> str:
    """The response to /readyz, "" before the port is open."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(65536).decode()
    except OSError:
        return ""
