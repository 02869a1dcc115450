"""The broker in the test's own process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import ConfigError
from ottla.broker.net.listener import ListenError
from ottla.broker.testing.embedded import Broker
from tests.doubles.broker_process import ROOT
from tests.doubles.producing import Outgoing, produce, read_from_start

SECONDS = 20.0


def write(broker: Broker, *values: bytes) -> None:
    produce(broker.bootstrap, "t", map(Outgoing, values), seconds=SECONDS)


def read(broker: Broker, count: int) -> list[bytes | None]:
    return read_from_start(broker.bootstrap, "t", count, seconds=SECONDS)


def test_a_broker_for_the_length_of_a_block() -> None:
    with Broker() as broker:
        write(broker, b"1", b"2")
        assert read(broker, 2) == [b"1", b"2"]
        directory = broker.directory
        assert directory.exists()
    assert not directory.exists()
    assert [each for each in threading.enumerate() if each.name.startswith("ottla")] == []


def test_several_brokers_do_not_meet() -> None:
    with Broker() as one, Broker() as other:
        write(one, b"one")
        write(other, b"other")
        assert (read(one, 1), read(other, 1)) == ([b"one"], [b"other"])


def test_a_restart_keeps_data_and_port() -> None:
    with Broker() as broker:
        write(broker, b"1")
        before = broker.bootstrap
        broker.restart()
        assert broker.bootstrap == before
        assert read(broker, 1) == [b"1"]


def test_a_directory_of_ones_own_is_kept(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        write(broker, b"1")
    with Broker(tmp_path / "data") as broker:
        assert read(broker, 1) == [b"1"]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError):
        Broker(num_partitions="many").start()


def test_a_start_that_fails_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker(listeners=f"PLAINTEXT://127.0.0.1:{port}")
        with pytest.raises(ListenError):
            broker.start()
    broker.stop()
    assert [each for each in threading.enumerate() if each.name.startswith("ottla")] == []


def test_a_broker_that_is_forgotten_does_not_hold_up_the_end_of_the_process() -> None:
    code = """
from ottla.broker.testing.embedded import Broker
broker = Broker()
broker.start()
print(broker.directory, flush=True)
raise SystemExit(3)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 3
    assert "Traceback" not in result.stderr
    assert not Path(result.stdout.strip()).exists()
