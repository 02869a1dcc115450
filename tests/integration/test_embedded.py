"""The broker in the test's own process."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from ottla.broker.net.listener import ListenError
from ottla.broker.runtime.tasks import spawn
from ottla.controller.registration import BrokerIdTaken
from ottla.testing import (
    Broker,
    Cluster,
    ConfigError,
    DirectoryInUse,
    DirectoryUnwritable,
    KafkaError,
    PortInUse,
    ZooKeeperUnreachable,
)
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

    def start(self) -> Self:
        self.starting.set()
        time.sleep(0.5)
        return super().start()

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


def test_an_error_says_how_the_broker_ended() -> None:
    broker = Broker()
    for end in (broker.pause, broker.crash, broker.stop):
        broker.start()
        end()
        ended = {"pause": "paused", "crash": "crashed", "stop": "stopped"}[end.__name__]
        with pytest.raises(RuntimeError, match=rf"not running, it was {ended}: call start\(\)$"):
            broker.faults.drop("Fetch")


def test_a_port_or_directory_in_use_is_named_as_the_argument(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        port = int(broker.bootstrap.partition(":")[2])
        with pytest.raises(PortInUse, match=f"^port={port}: another broker .* another port="):
            Broker(port=port).start()
        with pytest.raises(DirectoryInUse, match=f"^directory='{tmp_path}': another running"):
            Broker(tmp_path).start()


def test_a_start_that_cannot_be_has_an_error_with_a_public_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(DirectoryUnwritable, match=str(path)):
        Broker(path).start()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(ZooKeeperUnreachable, match=address):
        Broker(zookeeper_connect=address, zookeeper_connection_timeout_ms=100, broker_id=1).start()
    assert broker_threads() == []


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


def test_an_address_that_is_not_there_yet_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"not running: call start\(\)"):
        print(Broker().bootstrap)
    for use in (lambda c: c.bootstrap, lambda c: c[1], lambda c: c.create_topic("t")):
        with pytest.raises(RuntimeError, match="not running"):
            use(Cluster())


def test_the_number_of_partitions_is_that_of_the_settings() -> None:
    with Broker(num_partitions=3) as broker:
        broker.create_topic("t")
        assert broker.end_offset("t", 2) == 0
        broker.create_topic("one", partitions=1)
        with pytest.raises(KafkaError):
            broker.end_offset("one", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": {"retention.ms": "1h"}}, "INVALID_CONFIG: Invalid value 1h"),
        ({"config": {"cleanup.policy": "compcat"}}, "INVALID_CONFIG: Invalid value compcat"),
        ({"config": {"retenton.ms": 5}}, "INVALID_CONFIG.*did you mean retention.ms"),
        ({"config": {"cleanup_policy": "compact"}}, "INVALID_CONFIG.*did you mean cleanup.policy"),
        ({"partitions": 0}, "INVALID_PARTITIONS: Number of partitions must be larger than 0"),
        ({"replication_factor": 5}, "INVALID_REPLICATION_FACTOR: Replication factor: 5 larger"),
    ],
)
def test_a_topic_is_checked_as_for_every_client(arguments: dict[str, Any], words: str) -> None:
    with Broker() as broker:
        with pytest.raises(KafkaError, match=words):
            broker.create_topic("t", **arguments)
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            broker.end_offset("t")


def test_settings_of_a_topic_may_be_arguments() -> None:
    with Broker() as broker:
        broker.create_topic("t", retention_ms=1000, **{"cleanup.policy": "compact"})
        found = broker.server.parts.replica_manager.partitions["t", 0].log
        assert found is not None
        assert found.config.retention_ms == 1000
        with pytest.raises(KafkaError, match=r"INVALID_CONFIG.*did you mean retention\.ms"):
            broker.create_topic("u", retenton_ms=5)


def test_a_list_of_texts_is_a_setting_with_commas() -> None:
    policies = ["compact", "delete"]
    with Broker(log_cleanup_policy=policies) as broker:
        assert broker.server.config.log_cleanup_policy == policies
        broker.create_topic("one", cleanup_policy=("delete", "compact"))
        broker.create_topic("other", config={"cleanup.policy": policies})
        for topic, wanted in (("one", policies[::-1]), ("other", policies)):
            found = broker.server.parts.replica_manager.partitions[topic, 0].log
            assert found is not None
            assert list(found.config.cleanup_policy) == wanted
        with pytest.raises(TypeError, match=r"retention\.ms=.*expected an int.*3600000 for milli"):
            broker.create_topic("t", retention_ms=timedelta(hours=1))
    with pytest.raises(TypeError, match=r"log\.cleanup\.policy=.*a text with commas, or a list of"):
        Broker(log_cleanup_policy=set(policies))


def test_a_topic_is_deleted_and_created_again() -> None:
    with Broker() as broker:
        for _ in range(3):
            write(broker, b"1")
            assert broker.end_offset("t") == 1
            broker.delete_topic("t")
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                broker.end_offset("t")
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            broker.delete_topic("t")
        with pytest.raises(TypeError, match="name=3: expected a str"):
            broker.delete_topic(3)  # type: ignore[arg-type]


def test_a_port_may_be_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    broker = Broker(port=port, tls=True)
    with pytest.raises(RuntimeError, match="not running"):
        print(broker.bootstrap)
    with broker:
        assert broker.bootstrap == f"127.0.0.1:{port}"
        with pytest.raises(ListenError, match=str(port)):
            Broker(port=port).start()


def test_a_start_returns_what_it_started() -> None:
    for made in (Broker(), Cluster(brokers=1)):
        assert made.start() is made
        made.stop()


def test_faults_show_those_in_force() -> None:
    with Broker() as broker:
        assert repr(broker.faults) == "<Faults []>"
        broker.faults.drop("Fetch")
        assert repr(broker.faults) == "<Faults [<Fault drop Fetch hits=0>]>"


def test_a_fault_is_removed_by_itself_and_not_by_its_api() -> None:
    wrong: Any = "Fetch"
    with Broker() as broker:
        fault = broker.faults.drop("Fetch")
        with pytest.raises(TypeError, match=r"remove\('Fetch'\): write fault\.remove\(\) for what"):
            broker.faults.remove(wrong)
        assert repr(broker.faults) == "<Faults [<Fault drop Fetch hits=0>]>"
        broker.faults.remove(fault)
        assert repr(broker.faults) == "<Faults []>"


def test_an_existing_topic_is_named_before_a_wrong_setting() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            broker.create_topic("t", config={"retenton.ms": 5})


def test_a_failed_test_shows_what_there_is() -> None:
    broker = Broker()
    assert repr(broker) == "<Broker without an address not running>"
    with broker:
        assert repr(broker) == f"<Broker {broker.bootstrap} running: no topics>"
        write(broker, b"1", b"2")
        assert repr(broker).endswith("running: t (partitions: 1, end offsets: 2)>")
        fault = broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER", topic="t", times=2)
        assert repr(fault) == (
            "<Fault error NOT_LEADER_OR_FOLLOWER Produce topic='t' left=2 hits=0>"
        )
        fault.remove()
        assert repr(fault).endswith("removed>")
    assert repr(KafkaError(3, "t-0")) == "KafkaError(UNKNOWN_TOPIC_OR_PARTITION, 't-0')"


@pytest.mark.parametrize(
    ("api", "code", "words"),
    [
        (
            "produce",
            "NOT_LEADER_OR_FOLLOWER",
            r"produce is not an API of this broker: did you mean Produce\?$",
        ),
        ("Prodce", "NOT_LEADER_OR_FOLLOWER", "did you mean Produce"),
        ("Produce", "NOT_LEADER", "NOT_LEADER is not an error of Kafka: did you mean NOT_L"),
        ("Fetch", "NOT_LEADER_FOR_PARTITION", r"did you mean NOT_LEADER_OR_FOLLOWER\?$"),
        ("Fetch", "NotLeaderForPartition", r"did you mean NOT_LEADER_OR_FOLLOWER\?$"),
        ("Fetch", "NotLeaderOrFollower", r"did you mean NOT_LEADER_OR_FOLLOWER\?$"),
        ("*", "NOT_CONTROLLER", r"api='\*': there is no wildcard.* call the method for each"),
        ("Produce", "ZZZ", "ottla.testing.ErrorName has the names"),
        ("Produce", 0, "the code of a success"),
        ("NOT_CONTROLLER", "Fetch", r"is the first argument: error\('Fetch', 'NOT_CONTROLLER'\)"),
    ],
)
def test_names_of_faults_are_suggested(api: Any, code: Any, words: str) -> None:
    with Broker() as broker:
        with pytest.raises(ValueError, match=words):
            broker.faults.error(api, code)
        with pytest.raises(ValueError, match="times=0"):
            broker.faults.drop("Fetch", times=0)


def test_arguments_of_another_type_are_refused() -> None:
    wrong: Any = "3"
    number: Any = 3
    with Broker() as broker:
        with pytest.raises(TypeError, match="partitions='3': expected an int"):
            broker.create_topic("t", wrong)
        with pytest.raises(TypeError, match="replication_factor='3'"):
            broker.create_topic("t", replication_factor=wrong)
        with pytest.raises(TypeError, match=r"config='3': expected \{name: value\}"):
            broker.create_topic("t", config=wrong)
        with pytest.raises(TypeError, match="name=3: expected a str"):
            broker.create_topic(number)
        with pytest.raises(TypeError, match="replication_factor= is a named argument"):
            broker.create_topic("t", 3, number)
        with pytest.raises(TypeError, match=r"config=\{3: 1\}: expected"):
            broker.create_topic("t", config={number: 1})
        for named in ({"topic": number}, {"client_id": number}):
            with pytest.raises(TypeError, match="=3: expected a str"):
                broker.faults.drop("Fetch", **named)
        with pytest.raises(ValueError, match="times='3': a fault applies"):
            broker.faults.drop("Fetch", times=wrong)
        for api, words in (
            (0, "api=0: expected Kafka's name of an API: did you mean 'Produce'?"),
            (["Fetch", "Produce"], "a fault has one API; call the method for each of them"),
            (None, "such as 'Produce', which is the first argument"),
        ):
            for add in (broker.faults.drop, lambda api: broker.faults.delay(api, 3)):
                with pytest.raises(TypeError, match=re.escape(words)):
                    add(api)  # type: ignore[operator]
        with pytest.raises(TypeError, match=r"code=None: expected an error by name or number"):
            broker.faults.error("Fetch", None)  # type: ignore[arg-type]
        for delay in (wrong, -1, math.nan, math.inf):
            with pytest.raises(ValueError, match="expected milliseconds, from 0 on"):
                broker.faults.delay("Fetch", delay)
        with pytest.raises(ValueError, match="Heartbeat requests do not name topics"):
            broker.faults.drop("Heartbeat", topic="t")
        broker.faults.drop("AddPartitionsToTxn", topic="t")


def test_a_broker_that_is_not_stopped_ends_with_the_process_in_silence() -> None:
    # Jobs of the broker fall into the time in which the interpreter has ended worker threads.
    code = """
import atexit, time
from ottla.testing import Broker
broker = Broker(log_retention_check_interval_ms=50, log_flush_scheduler_interval_ms=50,
    replica_high_watermark_checkpoint_interval_ms=50)
broker.start()
broker.create_topic("t")
time.sleep(0.3)
atexit.register(time.sleep, 1)
print(broker.directory)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert not Path(result.stdout.strip()).exists()


def in_a_child(use: Callable[[], object]) -> int:
    """The exit code of a forked child that runs `use` and ends as a program does; it has 20 s."""
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            use()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child did not end")


def test_a_forked_child_ends_nothing_of_its_parent() -> None:
    code = """
import os, sys
from ottla.testing import Broker
with Broker() as broker:
    broker.create_topic("t")
    if os.fork() == 0:
        sys.exit(3)
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), broker.directory.exists(), broker.end_offset("t"))
    broker.create_topic("u")
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert result.stdout.split() == ["3", "True", "0"], result.stderr
    assert result.returncode == 0


def test_a_forked_child_may_connect_and_no_more() -> None:
    with Broker() as broker:
        write(broker, b"1")

        def use() -> None:
            assert "of the parent process" in repr(broker)
            for change in (broker.start, lambda: broker.end_offset("t"), lambda: broker.faults):
                with pytest.raises(RuntimeError, match="runs in the parent"):
                    change()
            broker.stop()
            with socket.create_connection(("127.0.0.1", int(broker.bootstrap.split(":")[1]))):
                pass

        assert in_a_child(use) == 0
        assert read(broker, 1) == [b"1"]


def test_a_port_is_free_when_the_broker_stops_although_a_child_lives() -> None:
    with Broker() as broker:
        write(broker, b"1")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent has closed its end
            os._exit(0)
        os.close(reading)
        try:
            broker.restart()
            assert read(broker, 1) == [b"1"]
        finally:
            os.close(writing)
            os.waitpid(pid, 0)


def test_a_start_after_a_stop_begins_empty() -> None:
    broker = Broker()
    for _ in range(3):
        with broker:
            broker.create_topic("orders")
            directory = broker.directory
            assert directory.exists()
        assert not directory.exists()


def test_a_cluster_that_starts_again_begins_empty() -> None:
    cluster = Cluster(brokers=2)
    for _ in range(2):
        with cluster:
            cluster.create_topic("orders")
            assert cluster.end_offset("orders") == 0


async def test_the_arguments_of_a_wait_are_checked() -> None:
    def waits(**named: Any) -> bool:
        return fault.wait(**named)

    async with Broker() as broker:
        fault = broker.faults.drop("Fetch")
        for named, kind, words in (
            ({"hits": 0.5}, TypeError, r"a time is wait\(seconds=5\)"),
            ({"hits": 0}, ValueError, "hits=0: expected 1 or more"),
            ({"seconds": "5"}, ValueError, "seconds='5': expected a number"),
            ({}, RuntimeError, r"await asyncio\.to_thread\(fault\.wait\)"),
        ):
            with pytest.raises(kind, match=words):
                waits(**named)
        assert not await asyncio.to_thread(fault.wait, 1, 0.01)


def test_a_wait_ends_with_the_fault() -> None:
    with Broker() as broker:
        fault = broker.faults.drop("Fetch")
        remover = threading.Timer(0.1, fault.remove)
        remover.start()
        begun = time.monotonic()
        assert not fault.wait(2)  # removed while it waits
        assert not fault.wait(1)  # before
        other = broker.faults.drop("Produce")
    assert not other.wait()  # with its broker
    assert time.monotonic() - begun < 20
    remover.join()


def test_faults_of_a_broker_that_has_stopped() -> None:
    with Broker() as broker:
        faults = broker.faults
        fault = faults.drop("Fetch")
    with pytest.raises(RuntimeError, match="is not running"):
        faults.drop("Fetch")
    fault.remove()
    faults.clear()


def test_a_partition_that_is_not_there_is_named() -> None:
    with Broker() as broker:
        broker.create_topic("a-5")
        with pytest.raises(KafkaError, match="no partition 2 of the topic 'a-5'"):
            broker.end_offset("a-5", 2)
        broker.create_topic("orders")
        with pytest.raises(KafkaError, match=r"no topic 'order': did you mean orders\?$"):
            broker.end_offset("order")
        with pytest.raises(KafkaError, match=r"there is no topic 'zzz'$"):
            broker.leader_id("zzz", 0)
        for topic, partition in ((b"a-5", 0), ("a-5", "0")):
            with pytest.raises(TypeError, match="expected"):
                broker.end_offset(topic, partition)  # type: ignore[arg-type]


def test_what_a_user_gives_is_checked() -> None:
    for tls in ("yes", "/tmp/cert.pem", 1):
        with pytest.raises(TypeError, match=r"tls=.*expected True or False"):
            Broker(tls=tls)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="brokers='3': expected an int"):
        Cluster(brokers="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pass broker\.bootstrap"):
        pickle.dumps(Broker())


def test_a_start_whose_id_is_taken_leaves_no_meta_properties(tmp_path: Path) -> None:
    """Another id is the fix; the directory must not keep the one that was taken."""
    with Cluster(brokers=1) as cluster:
        settings: dict[str, Any] = {"zookeeper.connect": cluster.zookeeper}
        for number, error in ((1, BrokerIdTaken), (2, None)):
            broker = Broker(tmp_path, **settings, **{"broker.id": number})
            with pytest.raises(error) if error else nullcontext():
                broker.start()
            assert (tmp_path / "meta.properties").exists() is (error is None)
            broker.stop()


def test_the_recovery_after_a_crash_of_the_test_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.restart(crash=True)
        assert broker.end_offset("t") == 0
    recovered = [line for line in caplog.records if "recovering its logs" in line.getMessage()]
    assert [line.levelname for line in recovered] == ["INFO"]
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []
