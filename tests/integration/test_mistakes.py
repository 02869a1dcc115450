"""The ten mistakes that people make most often, and what is reported about each."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.testing.embedded import Broker
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.storage.files.fs import RealFileSystem
from tests.doubles.broker_process import ROOT, BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.processes import without_the_rights_of_root

SECONDS = 60
ANY_PORT = "--override=listeners=PLAINTEXT://127.0.0.1:0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("mistakes")) as started:
        yield started


def failed_start(directory: Path, *arguments: str, **options: Any) -> tuple[int, str]:
    """Exit code and output of a start that is expected to fail."""
    harmless = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "OTTLA_"))}
    result = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "start", *arguments],
        cwd=directory,
        env={**harmless, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        **options,
    )
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr


def data(directory: Path) -> str:
    return f"--override=log.dirs={directory / 'data'}"


def test_1_an_advertised_listener_that_no_client_can_use(tmp_path: Path) -> None:
    code, output = failed_start(
        tmp_path,
        data(tmp_path),
        "--override=listeners=PLAINTEXT://0.0.0.0:0",
        "--override=advertised.listeners=PLAINTEXT://0.0.0.0:9092",
    )
    assert code == 18
    assert "advertised.listeners cannot use 0.0.0.0, which no client can connect to" in output
    assert "write the host name or address that clients use for this machine" in output


def test_1_an_advertised_name_that_is_not_known_here(tmp_path: Path) -> None:
    advertised = "PLAINTEXT://no-such-host.invalid:9092"
    with start_broker(tmp_path, advertised_listeners=advertised) as broker:
        assert "; clients are sent to no-such-host.invalid:9092" in broker.log()
        broker.wait_for_log("a name that is not known on this machine")
        assert "connect once and then get nowhere: advertise a name" in broker.log()


def test_1_a_disk_that_is_full_at_the_start(tmp_path: Path) -> None:
    with start_broker(tmp_path, ottla_log_dir_min_free_bytes=1 << 60) as broker:
        before, found, _ = broker.log().partition("is not ready: log directory ")
        assert found, broker.log()
        assert "is full, appends are rejected" in before
        assert "is ready" not in broker.log()


def test_2_tls_on_a_plain_port(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=SECONDS) as sock:
        sock.sendall(bytes.fromhex("160301020001000001fc0303") + bytes(32))
        assert sock.recv(1) == b""
    broker.wait_for_log("127.0.0.1 sent TLS: listener PLAINTEXT is not encrypted")
    assert "set the client's security.protocol to PLAINTEXT" in broker.log()


def test_3_the_data_of_another_cluster(tmp_path: Path) -> None:
    other = "AAAAAAAAAAAAAAAAAAAAAA"
    with start_broker(tmp_path) as broker:
        broker.stop()
        meta = broker.data_directory / "meta.properties"
        lines = meta.read_text().splitlines()
        (own,) = (line.partition("=")[2] for line in lines if "cluster.id" in line)
        meta.write_text("\n".join(line.replace(own, other) for line in lines))
        code, output = failed_start(
            tmp_path, f"--override=log.dirs={broker.data_directory}", ANY_PORT
        )
    assert code == 15
    assert f"belongs to the cluster {other}" in output
    assert f"is the cluster {own}" in output
    assert "Point zookeeper.connect" in output


def test_4_more_replicas_than_brokers(broker: BrokerProcess) -> None:
    response = CommandLine(broker.bootstrap)("topics", "create", "orders", "-r", "3")
    assert response.code == 1
    assert "Replication factor: 3 larger than available brokers: 1" in response.errors
    assert "it cannot be above the number of brokers" in response.errors


def test_5_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = failed_start(
            tmp_path, data(tmp_path), f"--override=listeners=PLAINTEXT://127.0.0.1:{port}"
        )
    assert code == 10
    assert f"127.0.0.1:{port}: another process uses that port" in output


def test_6_a_directory_of_another_broker(tmp_path: Path, broker: BrokerProcess) -> None:
    code, output = failed_start(tmp_path, f"--override=log.dirs={broker.data_directory}", ANY_PORT)
    assert code == 11
    assert f"log dir {broker.data_directory} is locked by another broker process" in output
    assert "stop that one, or give this broker another log.dirs" in output


def test_7_no_right_to_write(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    code, output = failed_start(
        tmp_path,
        f"--override=log.dirs={locked / 'data'}",
        ANY_PORT,
        preexec_fn=without_the_rights_of_root if os.geteuid() == 0 else None,
    )
    assert code == 12
    assert f"no directory of log.dirs can be written: {locked / 'data'}" in output
    assert "Permission denied" in output
    assert f"The broker runs as user {os.geteuid()}: give it the right to write there" in output


def test_8_a_full_disk(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Client and operator get an error, and room that is made is enough: no restart."""
    caplog.set_level("INFO", "ottla.storage")
    full = False

    def pwrite(descriptor: int, buffer: bytes, position: int) -> int:
        if full and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, buffer, position)

    monkeypatch.setattr(RealFileSystem, "pwrite", staticmethod(pwrite))
    with Broker() as broker, BlockingClient(broker.bootstrap) as client:
        broker.create_topic("t")
        assert _produce(client) == (ErrorCode.NONE, None)
        full = True
        code, message = _produce(client)
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert message is not None
        assert "is full, appends are rejected" in message
        assert "No space left on device" in message
        assert "free some space, no restart is needed" in caplog.text
        full = False
        broker.server.parts.logs.check_free_bytes()  # as it does itself, every now and then
        assert _produce(client) == (ErrorCode.NONE, None)
    assert "accepts appends again" in caplog.text
    assert "Traceback" not in caplog.text


def _produce(client: BlockingClient) -> tuple[int, str | None]:
    records = PartitionProduceData(0, build_batch([(1, None, b"v", [])]))
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData("t", [records])]
    )
    response = client.call_once(request)
    assert isinstance(response, ProduceResponse)
    row = response.responses[0].partition_responses[0]
    return row.error_code, row.error_message


def test_9_zookeeper_is_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    code, output = failed_start(
        tmp_path,
        data(tmp_path),
        ANY_PORT,
        f"--override=zookeeper.connect=127.0.0.1:{port}",
        "--override=zookeeper.connection.timeout.ms=1500",
    )
    assert code == 16
    assert f"No connection to ZooKeeper at 127.0.0.1:{port} within 1500 ms" in output
    assert "is it running, and is zookeeper.connect right?" in output
    assert output.count("Connection refused") <= 1


def test_10_an_unknown_setting(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("# a comment\nnum.partitons=3\n")
    code, output = failed_start(tmp_path, str(settings))
    assert code == 17
    assert f"{settings}:2: unknown setting num.partitons" in output
    assert "Did you mean num.partitions?" in output


def test_every_line_is_json_on_request(tmp_path: Path) -> None:
    with start_broker(tmp_path, ottla_log_format="json") as broker:
        broker.talk_http()
        broker.stop()
        lines = [json.loads(line) for line in broker.log().splitlines()]
    assert all({"time", "level", "logger", "event"} <= set(line) for line in lines)
    events = [line["event"] for line in lines]
    assert any("is ready: PLAINTEXT://" in event for event in events)
    assert any("stopping because of SIGTERM" in event for event in events)
