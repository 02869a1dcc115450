"""Workers that do not do what the supervisor wants."""

from __future__ import annotations

import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.workers import WorkerPlace
from ottla.broker.workers import supervisor as supervisor_module
from ottla.broker.workers.supervisor import SILENT_SECONDS, Supervisor


def supervisor_of_one() -> tuple[Supervisor, socket.socket]:
    place = WorkerPlace(0, 2, "m", "/nowhere", {}, None)
    config = BrokerConfig({"ottla.workers": "2"})
    prepared: Any = SimpleNamespace(configs=[config.for_worker({}, place)], tree_file=None)
    ours, theirs = socket.socketpair()
    ours.close()
    return Supervisor(config, prepared, 0, theirs), theirs


async def test_a_worker_that_cannot_be_killed_is_not_started_beside_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor, control = supervisor_of_one()
    monkeypatch.setattr(supervisor_module, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(supervisor_module, "KILLED_SECONDS", 0.01)
    started: list[Any] = []
    monkeypatch.setattr(supervisor, "_start", started.append)
    worker = supervisor.workers[0]
    supervisor._is_complete = True
    # Nothing reports its end, as that of one that waits for a disk.
    signals: list[int] = []
    monkeypatch.setattr(worker, "signal", signals.append)
    worker.pid = 1234
    worker.set_phase("running")
    await supervisor._replace()
    assert signals == [signal.SIGTERM, signal.SIGKILL]
    assert started == []
    assert worker.phase == "running"
    supervisor._ended(worker, -9)
    assert worker.phase == "pausing", "it is started again once it has ended"
    control.close()


def test_a_worker_that_took_long_to_start_is_not_silent() -> None:
    supervisor, control = supervisor_of_one()
    worker = supervisor.workers[0]
    worker.set_phase("starting")
    worker.silent_seconds = SILENT_SECONDS + 20
    supervisor._told(worker, {"ready": {}})
    assert worker.problem() is None
    control.close()
