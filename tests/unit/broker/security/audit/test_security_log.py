"""The lines of the security log, for people and for programs."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.observability.logs import LineFormatter
from ottla.broker.requests.request_context import Principal
from ottla.broker.runtime.timer import Timer
from ottla.broker.security.audit.repeats import LINES_OF_EVENT
from ottla.broker.security.audit.security_log import MAX_TEXT, Login, SecurityLog

LOGIN = Login("User:alice", "SCRAM-SHA-256", is_renewal=False)


def connection(host: str = "10.0.0.1") -> Any:
    return SimpleNamespace(client_host=host, client_port=4242, listener_name="SASL_SSL")


def context() -> Any:
    return SimpleNamespace(
        principal=Principal("User", "alice"),
        client_host="10.0.0.1",
        client_port=4242,
        listener_name="SASL_SSL",
        route=SimpleNamespace(entry=SimpleNamespace(name="CreateAcls")),
    )


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found = json.loads(LineFormatter(as_json=True).format(record))
    del found["time"]
    found.pop("message", None)  # of the formatter of `caplog`
    return cast("dict[str, Any]", found)


def test_a_login(caplog: pytest.LogCaptureFixture) -> None:
    log = SecurityLog(None)
    log.logged_in(connection(), LOGIN)
    log.logged_in(connection(), LOGIN._replace(is_renewal=True))
    assert [line.getMessage() for line in caplog.records] == [
        "Authenticated User:alice from 10.0.0.1:4242 on listener SASL_SSL with SCRAM-SHA-256",
        "Re-authenticated User:alice from 10.0.0.1:4242 on listener SASL_SSL with SCRAM-SHA-256",
    ]
    assert fields(caplog.records[0]) == {
        "level": "info",
        "logger": "ottla.audit",
        "event": caplog.records[0].getMessage(),
        "audit": "login",
        "principal": "User:alice",
        "address": "10.0.0.1",
        "listener": "SASL_SSL",
        "mechanism": "SCRAM-SHA-256",
        "result": "success",
    }


def test_a_failed_login(caplog: pytest.LogCaptureFixture) -> None:
    SecurityLog(None).login_failed(connection(), LOGIN, "failed to authenticate: wrong password")
    [line] = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        "10.0.0.1:4242 on listener SASL_SSL failed to authenticate: wrong password"
    )
    assert fields(line)["reason"] == "failed to authenticate: wrong password"
    assert fields(line)["result"] == "failure"


def test_many_wrong_passwords_leave_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    log = SecurityLog(None)
    for _ in range(1525):
        log.login_failed(connection(), LOGIN, "failed to authenticate: wrong password")
    assert len(caplog.records) == LINES_OF_EVENT
    log.flush()
    assert len(caplog.records) == LINES_OF_EVENT + 1
    assert caplog.records[-1].getMessage() == (
        f"Suppressed {1525 - LINES_OF_EVENT} more lines of User:alice from 10.0.0.1: "
        "failed to authenticate: wrong password"
    )
    assert fields(caplog.records[-1])["suppressed"] == 1525 - LINES_OF_EVENT


def test_the_number_has_the_level_of_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = SecurityLog(None)
    for _ in range(LINES_OF_EVENT + 1):
        log.logged_in(connection(), LOGIN)
        log.login_failed(connection(), LOGIN, "no")
        log.denied(context(), "READ", "Topic:LITERAL:secret")
    caplog.clear()
    log.flush()
    assert [line.levelname for line in caplog.records] == ["INFO", "WARNING", "INFO"]
    assert all("Suppressed 1 more lines" in text for text in caplog.messages)


async def test_the_number_is_written_after_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    delays: list[Any] = []
    seconds = [0.0]
    timer = cast("Timer", SimpleNamespace(schedule=lambda *call: delays.append(call)))
    log = SecurityLog(timer, lambda: seconds[0])
    for _ in range(LINES_OF_EVENT + 3):
        log.login_failed(connection(), LOGIN, "no")
    [(delay_ms, call)] = delays
    seconds[0] += delay_ms / 1000
    call()
    assert (
        caplog.records[-1].getMessage() == "Suppressed 3 more lines of User:alice from 10.0.0.1: no"
    )
    assert len(delays) == 1  # nothing is left to say


def test_texts_of_clients_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    log = SecurityLog(None)
    log.login_failed(connection(), LOGIN._replace(user="x" * 30_000), "y" * 30_000)
    log.denied(context(), "Read", "Topic:" + "z" * 30_000)
    for line in caplog.records:
        assert len(LineFormatter(as_json=True).format(line)) < 10 * MAX_TEXT


def test_successful_changes_are_never_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    log = SecurityLog(None)
    for number in range(500):
        log.changed(context(), "acl", f"Added ACL {number}")
        log.changed(context(), "acl", f"Added ACL {number}", "INVALID_REQUEST")
    good = [line for line in caplog.records if fields(line)["result"] == "success"]
    assert len(good) == 500
    assert len(caplog.records) == 500 + LINES_OF_EVENT
    assert good[0].getMessage() == (
        "User:alice from 10.0.0.1:4242 on listener SASL_SSL: Added ACL 0"
    )


def test_guesses_hide_neither_the_login_that_worked_nor_its_denials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = SecurityLog(None)
    for number in range(3000):
        guess = Login(f"User:guess{number}", "PLAIN", is_renewal=False)
        log.login_failed(connection(f"10.0.{number % 30}.1"), guess, "failed to authenticate")
    caplog.clear()
    log.logged_in(connection("10.0.1.1"), Login("User:anna", "PLAIN", is_renewal=False))
    log.denied(context(), "READ", "Topic:LITERAL:secret")
    assert ["Authenticated" in text or "Denied" in text for text in caplog.messages] == [True] * 2


def test_the_lines_of_an_address_say_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = SecurityLog(None)
    for number in range(150):
        guess = Login(f"User:guess{number}", "PLAIN", is_renewal=False)
        log.login_failed(connection(), guess, "failed to authenticate")
    caplog.clear()
    log.flush()
    assert caplog.messages == [
        "Suppressed 50 more lines of any user from 10.0.0.1: more different failed logins than are "
        "written in a minute"
    ]
