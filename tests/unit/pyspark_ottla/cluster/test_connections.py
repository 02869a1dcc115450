"""Clients kept from task to task, and TLS files for as long as they are needed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from ottla.protocol.client.blocking import BlockingClient
from pyspark_ottla.cluster import connections
from pyspark_ottla.cluster.connections import (
    IDLE_CLIENTS_MAX,
    acquire_client,
    client_of,
    connect,
    release_client,
)
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options
from pyspark_ottla.options.security_options import SecurityOptions


class Client:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def options(**given: str) -> ClientOptions:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return parse_client_options({"kafka.bootstrap.servers": "b:1"} | named, writes=False)


def _close_idle() -> None:
    """What tests before this one, in the same process, left for the next task."""
    while connections._idle:
        connections._idle.popleft()[2].close()


@pytest.fixture(autouse=True)
def _nothing_idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connections, "connect", lambda chosen: cast(BlockingClient, Client()))
    _close_idle()
    yield
    connections._idle.clear()


def test_a_client_serves_one_task_after_the_other() -> None:
    one, two = acquire_client(options()), acquire_client(options())
    assert one is not two, "never two tasks at once"
    release_client(options(), one)
    assert acquire_client(options(client_id="other")) is not one
    assert acquire_client(options()) is one


def test_too_many_idle_ones_are_closed() -> None:
    clients = [cast(Client, acquire_client(options())) for _ in range(IDLE_CLIENTS_MAX + 2)]
    for client in clients:
        release_client(options(), cast(BlockingClient, client))
    assert [client.closed for client in clients] == [True] * 2 + [False] * IDLE_CLIENTS_MAX


def test_a_forked_worker_does_not_use_its_parents_client(monkeypatch: pytest.MonkeyPatch) -> None:
    client = acquire_client(options())
    release_client(options(), client)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert acquire_client(options()) is not client


def test_a_client_that_failed_is_not_kept() -> None:
    with pytest.raises(ValueError, match="oops"), client_of(options()) as client:
        raise ValueError("oops")
    assert cast(Client, client).closed
    assert acquire_client(options()) is not client


def test_a_broken_certificate_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConnectorError, match=r"AUTHENTICATION_FAILED.*missing\.pem"):
        connect(options(security_protocol="SSL", ssl_ca_location=missing))
    with pytest.raises(ConnectorError, match="AUTHENTICATION_FAILED"):
        connect(options(security_protocol="SSL", ssl_ca_pem="-----BEGIN nonsense"))


def test_text_around_a_certificate_may_have_any_characters() -> None:
    """As the attributes that `openssl pkcs12` writes."""
    text = "Bag Attributes\n    friendlyName: Jürgen\n-----BEGIN CERTIFICATE-----"
    with connections._files(SecurityOptions(protocol="SSL", ca_pem=text)) as names:
        assert names["ca_file"] is not None
        assert Path(names["ca_file"]).read_text(encoding="utf-8") == text


def test_a_password_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_TEST_PASSWORD", "s3cret")
    chosen = options(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="anna",
        sasl_password="${env:OTTLA_TEST_PASSWORD}",
    )
    client = connect(chosen)
    assert client._security is not None
    assert client._security.password == "s3cret"


class SlowOptions:
    """Equal to all others, after a moment in which other threads run."""

    def __eq__(self, other: object) -> bool:
        time.sleep(0.002)
        return isinstance(other, SlowOptions)

    __hash__ = None  # type: ignore[assignment] # as nothing hashes options


def test_threads_take_different_clients() -> None:
    for _ in range(IDLE_CLIENTS_MAX):
        release_client(cast(ClientOptions, SlowOptions()), cast(BlockingClient, Client()))
    with ThreadPoolExecutor(IDLE_CLIENTS_MAX) as pool:
        tasks = [
            pool.submit(acquire_client, cast(ClientOptions, SlowOptions()))
            for _ in range(IDLE_CLIENTS_MAX)
        ]
        taken = {id(task.result()) for task in tasks}
    assert len(taken) == IDLE_CLIENTS_MAX
    assert not connections._idle
