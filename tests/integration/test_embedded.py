"""The broker in the test's own process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ottla.broker.net.listener import ListenError
from ottla.broker.runtime.tasks import spawn
from ottla.testing import Broker, ConfigError, KafkaError
from tests.doubles.broker_process import ROOT
from tests.doubles.producing import Outgoing, produce, read_from_start

SECONDS = 20.0


def write(broker: Broker, *values: bytes) -> None:
    produce(broker.bootstrap, "t", map(Outgoing, values), seconds=SECONDS)


def read(broker: Broker, count: int) -> list[bytes | None]:
    return read_from_start(broker.bootstrap, "t", count, seconds=SECONDS)


def broker_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("ottla")]


class SlowBroker(Broker):
    """Blocks the thread that starts or stops it for half a second each time."""

    def __init__(self) -> None:
        super().__init__()
        self.starting = threading.Event()

    def start(self) -> None:
        self.starting.set()
        time.sleep(0.5)
        super().start()

    def stop(self) -> None:
        time.sleep(0.5)
        super().stop()


def test_a_broker_for_the_length_of_a_block() -> None:
    with Broker() as broker:
        write(broker, b"1", b"2")
        assert read(broker, 2) == [b"1", b"2"]
        directory = broker.directory
        assert directory.exists()
    assert not directory.exists()
    assert broker_threads() == []


async def test_an_async_block_leaves_the_event_loop_free() -> None:
    broker = SlowBroker()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = spawn(count(), name="counting")
    async with broker as entered:
        assert entered is broker
        assert turns >= 10
        await asyncio.to_thread(write, broker, b"1")
        assert broker.end_offset("t") == 1
        turns = 0
    assert turns >= 10
    counting.cancel()
    assert not broker.is_running
    assert not broker.directory.exists()


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    broker = SlowBroker()
    entered = False

    async def use() -> None:
        nonlocal entered
        async with broker:
            entered = True

    using = spawn(use(), name="using")
    await asyncio.to_thread(broker.starting.wait)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert not entered
    assert not broker.is_running
    assert not broker.directory.exists()
    assert broker_threads() == []


async def test_a_start_that_fails_raises_in_an_async_block() -> None:
    with pytest.raises(ConfigError):
        async with Broker(num_partitions="many"):
            pass
    assert broker_threads() == []


def test_a_broker_that_is_not_running_says_so() -> None:
    broker = Broker()
    for use in (lambda: broker.faults, lambda: broker.server, lambda: broker.create_topic("t")):
        with pytest.raises(RuntimeError, match="the broker is not running"):
            use()
    with broker, pytest.raises(RuntimeError, match="the broker is running"):
        broker.start()


def test_an_error_has_kafkas_name() -> None:
    with Broker() as broker, pytest.raises(KafkaError) as caught:
        broker.end_offset("nowhere")
    assert caught.value.name == "UNKNOWN_TOPIC_OR_PARTITION"


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
    assert broker_threads() == []


def test_a_broker_that_is_forgotten_does_not_hold_up_the_end_of_the_process() -> None:
    code = """
from ottla.testing import Broker
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
