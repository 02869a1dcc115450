"""The banner of a broker that is ready."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.observability.banner import announce, announce_workers


def banner(capsys: pytest.CaptureFixture[str], http_port: int, **settings: str) -> list[str]:
    """The lines below the first."""
    names = {name.replace("_", "."): text for name, text in settings.items()}
    announce(BrokerConfig(names), 1, "c", {"PLAINTEXT": 9092}, http_port)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Ottla broker 1 of cluster c is ready."
    return lines


def test_a_broker_that_takes_no_records_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "log directory /data accepts no records: 0 bytes are free, the minimum is 1"
    announce(BrokerConfig(), 1, "c", {"PLAINTEXT": 9092}, not_ready=reason)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"Ottla broker 1 of cluster c is not ready: {reason}."
    workers = [
        {"cluster_id": "c", "broker_id": number, "listeners": [], "not_ready": text}
        for number, text in enumerate((None, reason))
    ]
    announce_workers(BrokerConfig(), workers, {}, 0)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"Ottla cluster c is not ready on 2 workers: worker 1: {reason}."
    announce_workers(BrokerConfig(), workers[:1], {}, 0)
    assert capsys.readouterr().out.startswith("Ottla cluster c is ready on 1 workers.")


def test_without_the_http_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in banner(capsys, 0)] == [
        *("PLAINTEXT://127.0.0.1:9092", "data", "znode")
    ]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"ottla_console_enable": "true"},
            "console http://127.0.0.1:9404/console, metrics http://127.0.0.1:9404/metrics",
        ),
        ({"ottla_metrics_address": ":9404"}, "metrics http://localhost:9404/metrics"),
        (
            {
                "ottla_metrics_address": "10.0.0.1:0",
                "ottla_console_enable": "true",
                "ottla_console_token": "secret-secret-secret",
            },
            "console http://10.0.0.1:9404/console (with ottla.console.token), "
            "metrics http://10.0.0.1:9404/metrics",
        ),
    ],
)
def test_the_http_port_has_an_address(
    capsys: pytest.CaptureFixture[str], settings: dict[str, str], line: str
) -> None:
    assert f"  {line}" in banner(capsys, 9404, **settings)


def test_a_lone_broker_says_how_other_machines_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    (listener, *_) = banner(capsys, 0)
    assert listener.endswith(
        "reachable from this machine only; for other machines set listeners=PLAINTEXT://:9092"
    )
    (listener, *_) = banner(capsys, 0, listeners="PLAINTEXT://127.0.0.1:9092")
    assert listener.endswith("reachable from this machine only")


@pytest.mark.parametrize(
    ("addresses", "words"),
    [(["127.0.1.1", "::1"], "is a loopback address"), (["127.0.0.1", "10.0.0.7"], None)],
)
async def test_a_broker_of_a_cluster_warns_of_a_name_that_leads_others_to_themselves(
    addresses: list[str],
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def resolved(name: str, port: None) -> list[tuple[object, ...]]:
        assert name == "here.example"
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getfqdn", lambda: "here.example")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    announce(BrokerConfig({"zookeeper.connect": "zk:2181"}), 1, "c", {"PLAINTEXT": 9092})
    (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "machine-name")
    await task
    assert [words in each.getMessage() for each in caplog.records if words] == [True] * bool(words)
    assert bool(caplog.records) == bool(words)
