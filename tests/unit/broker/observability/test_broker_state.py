"""Readiness: what is reported in each phase, and what a broker that is ready warns of."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ottla.broker.metrics.loop_stalls import LoopHealth
from ottla.broker.metrics.statistics import Traffic
from ottla.broker.net.descriptors import Descriptors
from ottla.broker.observability.broker_state import (
    PROGRESS_SECONDS,
    REMINDER_SECONDS,
    BrokerState,
    Observed,
    Phase,
    StateLog,
)
from ottla.broker.observability.faults import controller_fault
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import SESSION_CONNECTED, SESSION_SUSPENDED
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory


def directories(tmp_path: Path, count: int) -> list[LogDirectory]:
    paths = [tmp_path / str(number) for number in range(count)]
    for path in paths:
        path.mkdir()
    return [LogDirectory(RealFileSystem(), str(path)) for path in paths]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_a_broker_that_does_not_run_says_what_it_does(tmp_path: Path, phase: Phase) -> None:
    state = BrokerState(directories(tmp_path, 1))
    state.phase = phase
    assert state.not_ready() == phase.value


def test_recovery_shows_its_progress(tmp_path: Path) -> None:
    state = BrokerState(directories(tmp_path, 1))
    state.phase = Phase.LOADING
    part = state.load.of_directory("/data")
    part.logs, part.loaded_logs = 40, 3
    loading = "the broker is loading its logs: 3 of 40 logs are loaded"
    assert state.not_ready() == loading
    part.recovery_bytes = (120 << 20) - 1
    part.add_recovered(5 << 20)
    assert state.not_ready() == f"{loading}, recovery has read 5 of 120 MiB"
    fields = ("logs", "loaded_logs", "recovery_bytes", "recovered_bytes")
    assert [state.document()[name] for name in fields] == [40, 3, (120 << 20) - 1, 5 << 20]


def test_a_full_directory_of_two_is_a_warning_and_both_are_not(tmp_path: Path) -> None:
    first, second = directories(tmp_path, 2)
    state = BrokerState([first, second])
    state.phase, state.zookeeper_connected = Phase.RUNNING, True
    assert (state.not_ready(), state.warnings()) == (None, [])
    first.mark_full("3 bytes are free, the minimum is 4")
    assert state.not_ready() is None
    assert state.warnings() == [
        f"log directory {first.path} accepts no records: 3 bytes are free, the minimum is 4"
    ]
    second.fail(OSError(errno.EIO, "Input/output error"))
    assert "Input/output error" in str(state.not_ready())
    assert state.directory_states() == {
        (first.path, "accepting"): 0,
        (first.path, "full"): 1,
        (first.path, "offline"): 0,
        (second.path, "accepting"): 0,
        (second.path, "full"): 0,
        (second.path, "offline"): 1,
    }


@pytest.mark.parametrize("elected", [-1, 1, 2])
def test_a_controller_that_has_not_reached_this_broker_is_no_missing_one(
    tmp_path: Path, elected: int
) -> None:
    """Its own controller is in the same process: only that of another broker needs the address."""
    state = BrokerState(directories(tmp_path, 1))
    state.phase, state.zookeeper_connected = Phase.RUNNING, True
    state.observed = Observed(
        *(1, "c", 1, lambda: -1, dict, lambda: Descriptors(1, 100, 10), LoopHealth(lambda: 0.0)),
        traffic=lambda: Traffic(0, 0, 0),
        elected_controller=lambda: (elected, "PLAINTEXT://nowhere.invalid:9092"),
    )
    (fault,) = state.faults()
    if elected != 2:
        assert fault == controller_fault()
        return
    assert fault.name == "controller-cannot-reach"
    assert "broker 2, has not reached this broker" in fault.problem
    assert "PLAINTEXT://nowhere.invalid:9092" in fault.problem
    assert "advertised.listeners" in fault.fix


async def test_without_zookeeper_the_broker_stays_ready_with_a_warning(tmp_path: Path) -> None:
    store = EmbeddedStore()
    await store.connect()
    state = BrokerState(directories(tmp_path, 1))
    state.watch(store)
    state.phase = Phase.RUNNING
    for callback in store._session_callbacks:
        callback(SESSION_SUSPENDED)
    assert state.not_ready() is None
    assert state.warnings() == [
        "ZooKeeper is not connected: topics, settings and leaders do not change until it is"
    ]
    for callback in store._session_callbacks:
        callback(SESSION_CONNECTED)
    assert state.warnings() == []
    await store.close()


def test_a_fault_from_begin_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.state")
    now = 0.0
    state = BrokerState([LogDirectory(RealFileSystem(), str(tmp_path))])
    state.phase, state.zookeeper_connected = Phase.RUNNING, True
    log = StateLog(state, lambda: now)
    log.check()
    assert caplog.messages == []
    state.zookeeper_connected = False
    log.check()
    log.check()
    problem = "ZooKeeper is not connected: topics, settings and leaders do not change until it is"
    (line,) = caplog.messages
    assert line.startswith(f"Fault zookeeper-disconnected: {problem}; start ZooKeeper, or repair")
    caplog.clear()
    now = REMINDER_SECONDS
    log.check()
    assert caplog.messages == [f"Fault zookeeper-disconnected continues: {problem}"]
    caplog.clear()
    state.zookeeper_connected = True
    log.check()
    assert caplog.messages == ["Fault zookeeper-disconnected is over"]
    caplog.clear()
    state.phase, state.zookeeper_connected = Phase.STOPPING, False
    log.check()
    assert caplog.messages == []


def test_directories_are_logged_by_the_storage_and_repeated_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    directory = LogDirectory(RealFileSystem(), str(tmp_path))
    log = StateLog(BrokerState([directory]), lambda: now)
    directory.mark_full("no room")
    log.check()
    (line,) = caplog.messages
    assert line.startswith(f"Log dir {tmp_path} is full, appends are rejected: no room")
    caplog.clear()
    now = REMINDER_SECONDS
    log.check()
    problem = f"log directory {tmp_path} accepts no records: no room"
    assert caplog.messages == [f"Fault log-directory-full continues: {problem}"]


def test_a_long_start_says_what_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.state")
    now = 0.0
    state = BrokerState([LogDirectory(RealFileSystem(), str(tmp_path))])
    state.phase = Phase.LOADING
    part = state.load.of_directory("/data")
    part.logs, part.recovery_bytes = 3, 8 << 20
    part.add_recovered(7 << 20)
    log = StateLog(state, lambda: now)
    log.check()
    assert caplog.messages == []
    now = PROGRESS_SECONDS
    log.check()
    log.check()
    progress = "0 of 3 logs are loaded, recovery has read 7 of 8 MiB"
    assert caplog.messages == [f"Not ready yet: the broker is loading its logs: {progress}"]


async def test_it_runs_until_it_is_stopped(tmp_path: Path) -> None:
    log = StateLog(BrokerState([LogDirectory(RealFileSystem(), str(tmp_path))]))
    log.start()
    await log.stop()
    await log.stop()
