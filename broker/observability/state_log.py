"""The broker's state in its log: when a fault begins and ends, and what a start waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from ottla.broker.observability.broker_state import Phase
from ottla.broker.observability.faults import FULL, OFFLINE
from ottla.broker.runtime.tasks import spawn, stop

if TYPE_CHECKING:
    from ottla.broker.observability.broker_state import BrokerState
    from ottla.broker.observability.faults import Fault

logger = logging.getLogger("ottla.state")

CHECK_SECONDS = 1.0

# A start that takes long says so this often.
PROGRESS_SECONDS = 10.0

# Faults that last are repeated this often, for who reads only the end of the log.
REMINDER_SECONDS = 600.0

# The storage logs their begin and their end at once, as Kafka does.
LOGGED_BY_STORAGE = (FULL, OFFLINE)


class StateLog:
    """Reads the state once a second. Loop only."""

    def __init__(self, state: BrokerState, clock: Callable[[], float] = monotonic) -> None:
        self._state = state
        self._clock = clock
        self._faults: dict[tuple[str, str], Fault] = {}
        self._progress_at = self._reminder_at = clock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = spawn(self._run(), name="state-log")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await stop(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check()

    def check(self) -> None:
        """Logs what has changed since the last look."""
        now = self._clock()
        faults = {(fault.name, fault.subject): fault for fault in self._state.faults()}
        for key, fault in faults.items():
            if key not in self._faults and fault.name not in LOGGED_BY_STORAGE:
                logger.warning("Fault %s: %s; %s", fault.name, fault.problem, fault.fix)
        for key, fault in self._faults.items():
            if key not in faults and fault.name not in LOGGED_BY_STORAGE:
                logger.info("Fault %s is over%s", fault.name, _about(fault))
        self._faults = faults
        if not faults:
            self._reminder_at = now
        elif now - self._reminder_at >= REMINDER_SECONDS:
            self._reminder_at = now
            for fault in faults.values():
                logger.warning("Fault %s continues: %s", fault.name, fault.problem)
        if self._state.phase in (Phase.RUNNING, Phase.STOPPING):
            self._progress_at = now
        elif now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            logger.info("Not ready yet: %s", self._state.not_ready())


def _about(fault: Fault) -> str:
    return f": {fault.subject}" if fault.subject else ""
