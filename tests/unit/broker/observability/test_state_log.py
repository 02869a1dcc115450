"""Which lines the log has about the state: once when a fault begins and ends, and reminders."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.observability.broker_state import (
    PROGRESS_SECONDS,
    REMINDER_SECONDS,
    BrokerState,
    Phase,
    StateLog,
)
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory


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
