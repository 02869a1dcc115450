"""`ottla zookeeper` as a process: its banner, and a sentence for each common mistake."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.zookeeper import FILE_NAME, _options, main
from ottla.controller.tree.embedded_store import EmbeddedStore


def test_it_prints_the_port_and_ends_with_a_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla.cli.main", "zookeeper", "--port", "0", "--in-memory"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        banner = process.stdout.readline()
        start, _, rest = banner.partition("127.0.0.1:")
        port, _, end = rest.partition(" ")
        assert (start, end) == ("ZooKeeper for development on ", "(not highly available)\n")
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
            connection.sendall(b"ruok")
            assert connection.recv(100) == b"imok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_busy_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--port", str(port), "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"ottla: port {port} of 127.0.0.1 cannot be used (Address already in use); "
        "choose another with --port.\n"
    )


def test_a_directory_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert main(["--port", "0", "--data-dir", str(path)]) == 1
    assert "cannot be created" in capsys.readouterr().err


async def test_a_directory_of_a_running_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    store = EmbeddedStore(str(tmp_path / FILE_NAME))
    await store.connect()
    code = await asyncio.to_thread(main, ["--port", "0", "--data-dir", str(tmp_path)])
    await store.close()
    assert code == 1
    assert "is in use by another broker process" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port=70000", "--port=x", "--tick-time-ms=1", "--unknown"])
def test_wrong_options(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_file_is_the_one_of_a_broker_without_zookeeper() -> None:
    from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE

    assert FILE_NAME == EMBEDDED_STORE_FILE


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid"])
def test_a_host_that_does_not_resolve(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", host, "--port", "0", "--in-memory"]) == 1
    assert (
        capsys.readouterr().err == f"ottla: --host {host} does not resolve here; choose another.\n"
    )


def _file(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "zookeeper.properties"
    path.write_text("\n".join(lines))
    return str(path)


def test_the_file_of_kafka(tmp_path: Path) -> None:
    """As Kafka ships it, with another port and another directory."""
    data = tmp_path / "zookeeper"
    path = _file(
        tmp_path,
        *("# the directory where the snapshot is stored.", f"dataDir={data}", "clientPort=0"),
        *("maxClientCnxns=0", "admin.enableServer=false", "tickTime=3000", "initLimit=10"),
    )
    command = [sys.executable, "-m", "ottla.cli.main", "zookeeper", path]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=tmp_path, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "on 127.0.0.1:" in process.stdout.readline()
        assert process.stderr.readline() == f"ottla: {path}: no effect here: initLimit\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert (data / FILE_NAME).exists()


def test_options_go_before_those_of_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, "clientPort=12181", "clientPortAddress=10.0.0.1", "tickTime=3000")
    found = _options([path, "--port", "12182"])
    assert (found.host, found.port, found.tick_time_ms) == ("10.0.0.1", 12182, 3000)
    assert found.data_dir == "ottla-zookeeper"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("server.1=zk1:2888:3888", "zookeeper.properties:1: server.1 belongs to an ensemble"),
        ("secureClientPort=2182", "TLS is not supported: start Apache ZooKeeper with this file"),
        ("authProvider.1=org.apache.zookeeper.server.auth.SASL", "SASL and certificates"),
        ("clientPort=many", "a port is a number from 0 to 65535"),
        ("tickTime=1", "at least 10"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([_file(tmp_path, line)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "no.properties")])
    assert ended.value.code == 2
    assert "no.properties: No such file or directory" in capsys.readouterr().err


def test_a_data_directory_of_apache_zookeeper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty tree in its place would look like the loss of all topics."""
    (tmp_path / "version-2").mkdir()
    (tmp_path / "version-2" / "snapshot.0").touch()
    assert main([_file(tmp_path, f"dataDir={tmp_path}", "clientPort=0")]) == 1
    assert "has the data of Apache ZooKeeper" in capsys.readouterr().err
    assert not (tmp_path / FILE_NAME).exists()
