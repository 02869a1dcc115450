"""Reports of tasks over UDP: sums of a batch, and what else reaches the port."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_ottla import task_listener
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.task_listener import BATCHES_MAX, TaskListener, send
from tests.doubles.eventually import eventually

REPORT = {"query": "q", "batch": "3", "rows": 5, "retries": 1, "fetch_seconds": 0.25}


@pytest.fixture
def listener() -> Iterator[TaskListener]:
    with TaskListener() as started:
        yield started


def raw(listener: TaskListener, data: bytes) -> None:
    host, _, port = listener.address.partition("/")[0].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, (host, int(port)))


def test_the_sums_of_a_batch(listener: TaskListener) -> None:
    for _ in range(3):
        send(listener.address, REPORT)
    send(listener.address, REPORT | {"batch": "4"})
    eventually(lambda: listener.totals("q", 4))
    sums = listener.totals("q", 3)
    assert (sums["tasks"], sums["rows"], sums["retries"], sums["fetch_seconds"]) == (3, 15, 3, 0.75)
    assert listener.totals("q", 5) == listener.totals("other", 3) == {}


def test_reports_of_others_are_ignored() -> None:
    found: list[dict[str, Any]] = []
    with TaskListener(callback=found.append) as listener:
        secret = listener.address.partition("/")[2]
        for data in (
            b"",
            b"\xff" * 9000,
            b"[" * 8000,
            b"[1]",
            json.dumps(REPORT).encode(),
            json.dumps(REPORT | {"secret": "0" * len(secret)}).encode(),
            json.dumps(REPORT | {"secret": 7}).encode(),
            json.dumps(REPORT | {"secret": secret, "rows": "many"}).encode(),
        ):
            raw(listener, data)
        send(listener.address, {"rows": 1})  # of a batch read: no batch of a query
        send(listener.address, REPORT)
        eventually(lambda: len(found) == 2)
        assert listener.totals("q", 3)["tasks"] == 1
        assert found == [{"rows": 1}, REPORT]


def test_old_batches_are_forgotten(listener: TaskListener) -> None:
    for batch in range(BATCHES_MAX + 1):
        listener._add(REPORT | {"batch": str(batch)})
    assert listener.totals("q", 0) == {}
    assert listener.totals("q", BATCHES_MAX)


def test_an_address_that_cannot_be_reached_fails_no_task(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(task_listener.socket, "getaddrinfo", unknown)
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        send("nowhere.invalid:1/ab", REPORT)
    assert "could not be sent to nowhere.invalid:1" in caplog.text
    assert "ab" not in caplog.text.partition("nowhere.invalid:1")[2].partition(":")[0]


def test_a_listener_on_ipv6() -> None:
    try:
        started = TaskListener("::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with started as listener:
        assert listener.address.startswith("[::1]:")
        send(listener.address, REPORT)
        eventually(lambda: listener.totals("q", 3))


def test_the_option_takes_an_address_only() -> None:
    base = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    for given in ("driver:99/0a1b", "10.0.0.1:99/0a1b", "[::1]:99/0a1b"):
        found = parse_source_options(base | {"taskMetricsAddress": given})
        assert found.task_metrics_address == given
    for given in ("driver", "driver:99", "driver:99/", ":99/0a1b", "driver:port/0a1b"):
        with pytest.raises(ConnectorError, match="taskMetricsAddress"):
            parse_source_options(base | {"taskMetricsAddress": given})
