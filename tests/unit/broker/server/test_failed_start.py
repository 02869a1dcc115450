"""A start that fails late, when parts run already: all of them are stopped again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.runtime.tasks import running_tasks
from ottla.broker.server import broker_server
from ottla.broker.server.broker_server import BrokerServer
from ottla.broker.server.scheduler import BrokerScheduler
from ottla.controller.controller import Controller
from ottla.controller.registration import BrokerRegistration
from ottla.controller.tree.store import ConnectionLost
from tests.doubles.eventually import eventually_async

STEPS = {
    "reading the internal topics": (broker_server, "_partition_count"),
    "the registration": (BrokerRegistration, "register"),
    "the election": (Controller, "start"),
    "the first metadata": (BrokerServer, "_serve_clients"),
    "background tasks": (BrokerScheduler, "start"),
    "the console": (broker_server, "serve_parts"),
}


def server(*directories: Path) -> BrokerServer:
    disks = ",".join(map(str, directories))
    settings = {"log.dirs": disks, "listeners": "PLAINTEXT://127.0.0.1:0"}
    settings["group.coordinator.rebalance.protocols"] = "classic,consumer,share"
    settings["offsets.topic.num.partitions"] = "1"
    return BrokerServer(BrokerConfig(settings), lambda: None)


def broker_threads() -> set[threading.Thread]:
    """Without those of the event loop itself, which live as long as it."""
    return {each for each in threading.enumerate() if not each.name.startswith("asyncio_")}


@pytest.mark.parametrize("step", STEPS)
async def test_a_start_that_fails_late_leaves_nothing_that_runs(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name = STEPS[step]

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionLost("", f"lost at {step}")

    first = server(tmp_path)
    await first.start()
    await first.stop()
    before = broker_threads()
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        with pytest.raises(ConnectionLost, match=step):
            await server(tmp_path).start()
    await eventually_async(lambda: not running_tasks(), running_tasks, seconds=2)
    # The thread of the tree's file ends by itself after its last task.
    await eventually_async(lambda: broker_threads() <= before, broker_threads, seconds=2)
    again = server(tmp_path)  # nothing is locked, and nothing listens
    await again.start()
    assert not again.parts.logs.unclean_start
    await again.stop()
    await eventually_async(lambda: not running_tasks(), running_tasks, seconds=2)


@pytest.mark.parametrize("step", STEPS)
async def test_a_start_that_fails_keeps_what_only_it_has_seen(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power failure the controller has to hear that records may be missing, and an operator
    that a disk is: not of the start that failed."""
    disks = [tmp_path / "one", tmp_path / "two"]
    first = server(*disks)
    await first.start()
    await first.stop(crash=True)
    where, name = STEPS[step]

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionLost("", f"lost at {step}")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fail)
            with pytest.raises(ConnectionLost, match=step):
                await server(disks[0]).start()
    caplog.clear()
    again = server(disks[0])
    await again.start()
    assert again.parts.registration.unclean_shutdown
    assert f"Log dir {disks[1]} of the last start is missing" in caplog.text
    await again.stop()
    caplog.clear()
    last = server(disks[0])
    await last.start()
    assert not last.parts.registration.unclean_shutdown
    assert "is missing" not in caplog.text
    await last.stop()
