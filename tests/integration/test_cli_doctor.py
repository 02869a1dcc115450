"""`ottla doctor` and `ottla healthcheck`: what a person and a container learn."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ottla.cli.doctor import probe
from ottla.cli.healthcheck import main as healthcheck
from ottla.cli.session import Session
from ottla.protocol.client.cluster import parse_bootstrap
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine


def test_a_broker_that_can_be_reached(ottla: CommandLine, shared_broker: BrokerProcess) -> None:
    found = ottla.done("doctor", "--json").value
    assert found["ok"]
    assert [row["what"] for row in found["checks"]] == [
        *("bootstrap", "cluster", "broker 7", "state")
    ]
    assert found["checks"][1]["finding"].endswith("partitions have a leader and are in sync")
    assert found["checks"][2]["address"] == shared_broker.bootstrap
    assert "loopback" in found["checks"][2]["advice"]
    assert found["checks"][3] == {
        "address": "-",
        "what": "state",
        "result": "ok",
        "finding": "broker 7: no HTTP port, its faults cannot be checked",
        "advice": "set ottla.metrics.address.",
    }
    assert ottla.done("status", "--json").value["notes"] == [
        "broker 7: no HTTP port, its faults cannot be checked; set ottla.metrics.address"
    ]


def test_another_broker_at_the_address(shared_broker: BrokerProcess) -> None:
    """Such as that of a container whose port is mapped to another one."""
    session = Session(shared_broker.bootstrap, "", 10.0, False)
    [address] = parse_bootstrap(shared_broker.bootstrap)
    finding, _ = probe(session, address, "broker 8", 10_000, 8)
    assert (finding.ok, finding.finding) == (False, "broker 7 responds there")
    assert probe(session, address, "broker 7", 10_000, 7)[0].ok
    session.close()


def test_a_throttle_that_is_left(ottla: CommandLine, shared_broker: BrokerProcess) -> None:
    del shared_broker
    rate = "leader.replication.throttled.rate"
    ottla.done("topics", "create", "throttled")
    ottla.done("configs", "set", "topic", "throttled", "leader.replication.throttled.replicas=*")
    ottla.done("configs", "set", "broker", "7", f"{rate}=1000")
    try:
        response = ottla("doctor")
        assert response.code == 1
        assert f"replication is throttled: broker 7 has {rate}=1000, topic throttled has" in (
            response.output
        )
        assert f"`ottla configs unset broker 7 {rate}`" in response.output
        assert "`ottla configs unset topic throttled leader.rep" in response.output
        assert not ottla("status", "--json").value["ok"]
    finally:
        ottla.done("configs", "unset", "broker", "7", rate)
        ottla.done("topics", "delete", "throttled", "--yes")
    assert ottla("doctor").code == 0


def test_an_advertised_name_without_an_address(tmp_path: Path) -> None:
    """The most frequent mistake of all: it connects, and then nothing works."""
    advertised = "PLAINTEXT://no-such-host.invalid:9092"
    with start_broker(tmp_path, advertised_listeners=advertised) as broker:
        response = CommandLine(broker.bootstrap)("doctor")
    assert response.code == 1
    assert "no-such-host.invalid:9092  the name does not resolve here" in response.output
    assert "Set advertised.listeners of the broker to a name or address that works from here" in (
        response.output
    )
    assert response.errors == "ottla: 1 of 3 checks found a problem.\n"


def test_no_broker_at_the_bootstrap_address(ottla: CommandLine) -> None:
    response = ottla("doctor", "-b", "127.0.0.1:1")
    assert response.code == 3
    assert "nothing listens there (127.0.0.1): check that the broker runs" in response.output


def test_something_else_listens_there(ottla: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        web = threading.Thread(target=_respond_as_web_server, args=(server,))
        web.start()
        response = ottla("doctor", "-b", f"127.0.0.1:{server.getsockname()[1]}")
        web.join()
    assert response.code == 3
    assert "it is a web server, not a Kafka broker" in response.output


def _respond_as_web_server(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_tls_to_a_plain_port(ottla: CommandLine, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\n")
    response = ottla("topics", "list", "--command-config", str(properties))
    assert response.code == 3
    assert "does this port expect security.protocol=PLAINTEXT" in response.errors


def test_a_healthy_broker(shared_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck(["--bootstrap", shared_broker.bootstrap], {}) == 0
    assert capsys.readouterr().out.startswith(f"healthy: {shared_broker.bootstrap}, 1 broker(s)")
    assert healthcheck(["--json"], {"OTTLA_BOOTSTRAP": shared_broker.bootstrap}) == 0
    assert json.loads(capsys.readouterr().out)["controller"] == 7


def test_no_broker_responds(capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck(["-b", "127.0.0.1:1"], {}) == 3
    assert capsys.readouterr().err == (
        "ottla: not healthy: cannot reach 127.0.0.1:1: Connection refused; is the broker running?\n"
    )


def test_the_fast_commands_import_nothing_slow(shared_broker: BrokerProcess) -> None:
    """Start-up is a feature: containers run it every few seconds."""
    code = (
        "import sys; from ottla.cli.healthcheck import main; "
        f"assert main(['-b', '{shared_broker.bootstrap}'], {{}}) == 0; "
        "print(sorted({'typer', 'rich', 'ssl', 'click', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_help_imports_neither_rich_nor_the_client() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from ottla.cli.app import app; "
        "before = set(sys.modules); "
        "done = CliRunner().invoke(app, ['topics', '--help']); assert done.exit_code == 0, done; "
        "print(sorted({'rich.console', 'ottla.protocol.client.blocking', 'ottla.cli.groups'} "
        "& (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
