"""The names under which the HTTP port serves metrics."""

import socket

import pytest

from ottla.broker.observability.http_hosts import HostNames


def head(*hosts: str) -> bytes:
    lines = "".join(f"hOst: {host}\r\n" for host in hosts)
    return f"GET /metrics HTTP/1.1\r\nAccept: */*\r\n{lines}\r\n".encode()


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9404", "127.0.0.1", "[::1]:80", "192.0.2.1:9", "broker1", "Broker1:1"],
)
def test_names_and_addresses_of_this_machine(host: str) -> None:
    assert HostNames(["Broker1 ", ""]).permit(head(host))


def test_the_host_name_of_this_machine() -> None:
    assert HostNames([]).permit(head(f"{socket.gethostname()}:9404"))


@pytest.mark.parametrize(
    "host", ["example.org", "broker1.example.org", "", ":80", "1.2.3.4.example"]
)
def test_other_names(host: str) -> None:
    assert not HostNames(["broker1"]).permit(head(host))
    assert HostNames(["*"]).permit(head(host))


def test_of_two_names_none_is_believed() -> None:
    assert not HostNames([]).permit(head("localhost", "localhost"))


def test_a_client_that_is_no_browser_may_name_nothing() -> None:
    assert HostNames([]).permit(head())
