"""Who is served by the console: addresses, names, the token."""

from __future__ import annotations

import logging

import pytest

from ottla.broker.observability.console.access import (
    ConsoleDoor,
    ConsoleRequest,
    Refused,
    host_name,
    is_local,
)
from ottla.broker.security.audit.security_log import SecurityLog

TOKEN = "sixteen-or-more-characters"


def door(
    *, allow_remote: bool = False, token: str | None = None, hosts: tuple[str, ...] = ()
) -> ConsoleDoor:
    return ConsoleDoor(allow_remote=allow_remote, token=token, hosts=hosts, log=SecurityLog(None))


def request(host: str = "localhost", peer: str = "127.0.0.1", given: str = "") -> ConsoleRequest:
    return ConsoleRequest("/api/overview", "", host, given, peer)


def status(console: ConsoleDoor, asked: ConsoleRequest) -> int:
    try:
        console.check_address(asked)
        console.check_token(asked)
    except Refused as refusal:
        return int(refusal.status.split()[0])
    return 200


def test_who_is_local() -> None:
    assert all(map(is_local, ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_local, ("10.0.0.1", "", "::ffff:10.0.0.1", "fe80::1%eth0")))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("LOCALHOST:9404", "localhost"),
        ("[::1]:9404", "::1"),
        ("[::1]", "::1"),
        ("evil.example:80:9404", "evil.example:80"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9404", "127.0.0.1:1", "[::1]:9404"])
def test_this_machine_by_its_names(host: str) -> None:
    assert status(door(), request(host)) == 200
    assert status(door(), request(host, peer="10.0.0.1")) == 403


@pytest.mark.parametrize(
    "host",
    ["", "localhost.", "localhost.evil.example", "evil:9404", "[::2]:1", "0.0.0.0", "127.0.0.1.x"],
)
def test_other_names_are_refused(host: str) -> None:
    assert status(door(), request(host)) == 403


def test_names_that_are_set_and_addresses_with_remote_use() -> None:
    remote = door(allow_remote=True, token=TOKEN, hosts=("Console.Example.org", ""))
    for host, expected in (
        ("console.example.org:9404", 200),
        ("10.0.0.9:9404", 200),
        ("evil.example", 403),
        ("", 403),
    ):
        asked = request(host, "10.0.0.1", f"Bearer {TOKEN}")
        assert status(remote, asked) == expected, host


@pytest.mark.parametrize(
    "given", ["", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", "Bearer \xff"]
)
def test_without_the_token(given: str) -> None:
    assert status(door(token=TOKEN), request(given=given)) == 401


def test_a_wrong_token_is_in_the_security_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = request(peer="127.0.0.1", given="Bearer guess")
    assert status(door(token=TOKEN), asked) == 401
    assert "127.0.0.1:0 on listener HTTP sent a wrong ottla.console.token" in caplog.text
    assert "guess" not in caplog.text


def action(**changes: str) -> ConsoleRequest:
    fields = {
        "method": "POST",
        "content_type": "application/json; charset=utf-8",
        "action": "1",
        "origin": "http://localhost:9404",
        **changes,
    }
    return request("localhost:9404")._replace(**fields)


@pytest.mark.parametrize(
    "changes",
    [
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": ""},
        {"action": ""},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost.evil.example:9404"},
        {"origin": "null"},
        {"origin": "http://[::1"},
    ],
)
def test_a_change_that_another_site_sends_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(Refused):
        door().check_action(action(**changes))


def test_a_change_of_the_console_is_served() -> None:
    door().check_action(action())
    door().check_action(action(origin=""))  # a program, not a browser
    door().check_action(action(origin="https://LOCALHOST"))  # behind a proxy with TLS


def test_a_read_only_console_changes_nothing() -> None:
    console = ConsoleDoor(
        allow_remote=False, token=None, hosts=(), log=SecurityLog(None), read_only="it is read-only"
    )
    with pytest.raises(Refused, match="it is read-only"):
        console.check_action(action())
