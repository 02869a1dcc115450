"""Where the HTTP port of a broker is, and what counts as its state."""

from __future__ import annotations

import socket
import threading
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ottla.cli.broker_status import (
    BrokerStatus,
    NoHttpPort,
    NoResponse,
    StatusUnknown,
    _as_reached,
    fetch_status,
    read_all,
)
from ottla.cli.doctor import app as doctor
from ottla.cli.doctor import status_findings
from ottla.cli.session import Session
from ottla.protocol.client.errors import (
    BrokerConnectionError,
    UnknownBrokerError,
    UnsupportedApiError,
)
from ottla.protocol.client.operations import Node
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker


@pytest.mark.parametrize(
    ("address", "advertised", "reached"),
    [
        (":9404", "broker-1", "broker-1:9404"),
        ("0.0.0.0:9404", "10.0.0.1", "10.0.0.1:9404"),
        ("[::]:9404", "10.0.0.1", "10.0.0.1:9404"),
        ("10.0.0.9:9404", "broker-1", "10.0.0.9:9404"),
        ("127.0.0.1:9404", "127.0.0.1", "127.0.0.1:9404"),
        ("127.0.0.1:9404", "localhost", "127.0.0.1:9404"),
        ("127.0.0.1:9404", "broker-1", None),
        (":9404", "fd00::2", "[fd00::2]:9404"),
        (":0", "broker-1", None),
    ],
)
def test_where_a_port_is_reached(address: str, advertised: str, reached: str | None) -> None:
    assert _as_reached(address, advertised) == reached


def served(response: bytes) -> str:
    """The address of a server that sends this to one client."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(1024)
            connection.sendall(response)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_document() -> None:
    address = served(b'HTTP/1.1 200 OK\r\n\r\n{"broker_id": 3, "faults": [{"name": "x"}, 1]}')
    status = fetch_status(f"http://{address}/", 30)
    assert (status.broker_id, status.faults) == (3, [{"name": "x"}])


@pytest.mark.parametrize(
    "response",
    [b"HTTP/1.1 404 Not Found\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\nno", b"", b"HTTP/1.1 200 OK"],
)
def test_no_document(response: bytes) -> None:
    with pytest.raises(StatusUnknown, match="serves no /statusz"):
        fetch_status(served(response), 30)


def test_no_server_listens() -> None:
    with pytest.raises(StatusUnknown, match="Connection refused"):
        fetch_status("127.0.0.1:1", 30)
    with pytest.raises(StatusUnknown, match="is not host:port"):
        fetch_status("localhost", 30)


@pytest.mark.parametrize("port", ["99999", "9" * 5000, "\u00b2", ""])
def test_what_is_no_port(port: str) -> None:
    with pytest.raises(StatusUnknown, match="is not host:port"):
        fetch_status(f"127.0.0.1:{port}", 1)


def test_what_cannot_be_a_name() -> None:
    with pytest.raises(StatusUnknown, match=r"cannot reach a\.\.b:1"):
        fetch_status("a..b:1", 1)


def test_a_document_of_brackets() -> None:
    with pytest.raises(StatusUnknown, match="serves no /statusz"):
        fetch_status(served(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000), 30)


def test_doctor_with_a_name_or_a_time_that_cannot_be() -> None:
    done = CliRunner().invoke(doctor, ["--bootstrap", "a..b:1"])
    assert (done.exit_code, "does not resolve" in done.stdout) == (3, True), done.exception
    for wait in ("nan", "inf", "-1", "1e300"):
        done = CliRunner().invoke(doctor, ["--bootstrap", "a..b:1", "--wait", wait])
        assert (done.exit_code, "is not a number of seconds" in done.stderr) == (2, True)


def test_certificates_are_valid_from_a_day_to_another() -> None:
    good = {"listener": "SSL", "not_before": 0.0, "not_after": 86_400.0 * 365}
    odd = [{"listener": "OLD", "expires_in_days": 3}, {**good, "not_after": 1e300}, "x"]
    document = {"broker_id": 1, "phase": "running", "faults": [], "certificates": [good, *odd]}
    found = status_findings(BrokerStatus("127.0.0.1:1", document))
    assert [each.finding for each in found] == [
        "ready, without a fault",
        "valid from 1970-01-01 to 1971-01-01",
    ]


class Brokers:
    """Broker 1 has no HTTP port, 2 is down, 3 has left, 4 is too old to describe settings."""

    def __init__(self) -> None:
        self.client = self

    def metadata(self, _names: list[str]) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(number, "h", number) for number in (1, 2, 3, 4)]
        )

    def call(self, _kind: type, _request: object, to: Node) -> Any:
        errors = {
            2: BrokerConnectionError("cannot connect to h:2: Connection refused"),
            3: UnknownBrokerError("the cluster has no broker 3"),
            4: UnsupportedApiError("no DescribeConfigs"),
        }
        if to.node_id in errors:
            raise errors[to.node_id]
        row = DescribeConfigsResourceResult(name="ottla.metrics.address", value="")
        return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[row])])


def test_a_broker_that_does_not_respond_is_named() -> None:
    away, without = read_all(cast(Session, Brokers()), (), 1)
    assert isinstance(away, NoResponse)
    assert isinstance(without, NoHttpPort)
    assert str(away) == ("broker 2 does not respond: cannot connect to h:2: Connection refused")
    assert status_findings(away) == []  # doctor connects to each address itself
