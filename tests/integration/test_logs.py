"""What a running broker logs: fields of JSON lines, and levels changed while it runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine

SECONDS = 60.0


def lines(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Every whole line that was written so far."""
    return [json.loads(line) for line in broker.log().splitlines() if line.endswith("}")]


def connect_and_leave(broker: BrokerProcess) -> None:
    """A client that connects, says nothing, and waits until the broker has seen it leave."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=SECONDS) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def level_of(ottla: CommandLine, name: str) -> str:
    rows = ottla.done("configs", "describe", "logger", "0", "--json").value
    (level,) = {row["value"] for row in rows if row["name"] == name}
    return str(level)


def test_levels_change_while_it_runs(tmp_path: Path) -> None:
    with start_broker(tmp_path, broker_id="0", ottla_log_format="json") as broker:
        ottla = CommandLine(broker.bootstrap)
        connect_and_leave(broker)
        assert level_of(ottla, "ottla.net") == "INFO"
        assert not [line for line in lines(broker) if line["level"] == "debug"]

        ottla.done("configs", "set", "logger", "0", "ottla.net=DEBUG")
        assert level_of(ottla, "ottla.net") == "DEBUG"
        connect_and_leave(broker)
        broker.wait_for_log("closing")
        found = [line for line in lines(broker) if line["level"] == "debug"]
        assert {line["logger"] for line in found} == {"ottla.net"}

        ottla.done("configs", "unset", "logger", "0", "ottla.net")
        assert level_of(ottla, "ottla.net") == "INFO"


def test_a_line_says_what_it_is_about(tmp_path: Path) -> None:
    with start_broker(tmp_path, ottla_log_format="json") as broker:
        broker.talk_http()
        (line,) = [line for line in lines(broker) if "not HTTP" in line["event"]]
    assert line["level"] == "warning"
    assert (line["peer"], line["listener"]) == ("127.0.0.1", "PLAINTEXT")
