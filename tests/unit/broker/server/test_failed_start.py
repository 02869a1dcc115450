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


def server(directory: Path) -> BrokerServer:
    settings = {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
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

    before = broker_threads()
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        with pytest.raises(ConnectionLost, match=step):
            await server(tmp_path).start()
    await eventually_async(lambda: not running_tasks(), running_tasks, seconds=2)
    assert broker_threads() <= before
    again = server(tmp_path)  # nothing is locked, and nothing listens
    await again.start()
    assert not again.parts.logs.unclean_start
    await again.stop()
    await eventually_async(lambda: not running_tasks(), running_tasks, seconds=2)
