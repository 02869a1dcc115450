"""The state of the broker, as /readyz, /statusz, the metrics, `ottla healthcheck`, `ottla doctor`,
`ottla log-dirs`, the console and the log report it.

A broker is ready when it has joined its cluster and one of its log directories accepts appends.
It stays ready while ZooKeeper is away, because produce and fetch requests continue; the response
to /readyz names what does not work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.observability.faults import (
    FAULTS,
    FULL,
    OFFLINE,
    Fault,
    certificate_faults,
    controller_fault,
    descriptor_fault,
    directory_faults,
    loop_fault,
    missing_directory_faults,
    remote_storage_fault,
    set_aside_faults,
    unreachable_fault,
    znode_file_fault,
    zookeeper_fault,
)
from ottla.broker.runtime.tasks import spawn, stop
from ottla.controller.tree.store import SESSION_CONNECTED
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.recovery.load_progress import LoadProgress

if TYPE_CHECKING:
    from ottla.broker.config.workers import WorkerPlace
    from ottla.broker.metrics.loop_stalls import LoopHealth
    from ottla.broker.metrics.statistics import Traffic
    from ottla.broker.net.descriptors import Descriptors
    from ottla.broker.security.tls.certificate_dates import CertificateDates
    from ottla.controller.tree.store import ZnodeStore
    from ottla.controller.tree.tree_file import WriteProblem


_MEBIBYTE = 1 << 20
_DAY_SECONDS = 86_400


class Phase(Enum):
    """In the order of a start; the value is the text of /readyz."""

    STARTING = "the broker is starting"
    CONNECTING = "the broker waits for ZooKeeper"
    LOADING = "the broker is loading its logs"
    JOINING = "the broker is joining the cluster"
    RUNNING = "the broker serves clients"
    STOPPING = "the broker is stopping"


class Observed(NamedTuple):
    """The state of a broker with all its parts, beside its directories."""

    broker_id: int
    cluster_id: str
    listeners: int
    #: The broker id of the controller, negative without one.
    controller_id: Callable[[], int]
    #: By the name of the listener.
    certificates: Callable[[], Mapping[str, CertificateDates]]
    descriptors: Callable[[], Descriptors]
    loop: LoopHealth
    traffic: Callable[[], Traffic]
    #: The present failure of remote storage, or None.
    remote_storage: Callable[[], str | None] = lambda: None
    #: Where ZooKeeper and the logs of this broker disagree.
    replicas: Callable[[], list[Fault]] = list
    #: Znodes of rights and settings that cannot be used.
    settings: Callable[[], list[Fault]] = list
    #: The controller in the znode tree, negative without one, and where it looks for this broker.
    elected_controller: Callable[[], tuple[int, str]] = lambda: (-1, "")
    #: How many logs are being compacted.
    compactions: Callable[[], int] = lambda: 0


class BrokerState:
    """Written by the server that starts and stops."""

    def __init__(
        self, directories: Sequence[LogDirectory], now: Callable[[], float] = time.time
    ) -> None:
        """`now` is the time in seconds since 1970."""
        self.directories = directories
        self.phase = Phase.STARTING
        #: How far the load of the logs is, with recovery after an unclean shutdown.
        self.load = LoadProgress()
        #: Whether the session with ZooKeeper is connected; true for a broker without ZooKeeper.
        self.zookeeper_connected = False
        #: None until the broker has its parts.
        self.observed: Observed | None = None
        #: The paths of log directories of the last start that are not there.
        self.missing_directories: Callable[[], Sequence[str]] = lambda: ()
        #: Of a broker that is one of several workers of its machine.
        self.worker: WorkerPlace | None = None
        self._now = now
        self._started = now()
        self._write_problem: Callable[[], WriteProblem | None] = lambda: None

    def watch(
        self, store: ZnodeStore, write_problem: Callable[[], WriteProblem | None] = lambda: None
    ) -> None:
        """Follow the session of a store that is connected. `write_problem` is that of a store
        with a file of its own."""
        self.zookeeper_connected = True
        self._write_problem = write_problem
        store.on_session(self._session_changed)

    @property
    def can_change_tree(self) -> bool:
        """Whether what has to be written to the znode tree can be written."""
        return self.zookeeper_connected and self._write_problem() is None

    def _session_changed(self, event: str) -> None:
        self.zookeeper_connected = event == SESSION_CONNECTED

    def faults(self) -> list[Fault]:
        """The current faults, in the order of `FAULTS`."""
        found = directory_faults(self.directories) + set_aside_faults(self.directories)
        running = self.phase is Phase.RUNNING
        if running and not self.zookeeper_connected:
            found.append(zookeeper_fault())
        unwritable = self._write_problem()
        if unwritable is not None:
            found.append(znode_file_fault(unwritable))
        observed = self.observed
        if observed is not None:
            # Without a file to write there cannot be a controller: not a fault of its own.
            if running and observed.controller_id() < 0 and unwritable is None:
                found.append(_controller_fault(observed))
            found += certificate_faults(observed.certificates(), self._now(), observed.listeners)
            found += filter(
                None,
                (
                    descriptor_fault(observed.descriptors()),
                    loop_fault(observed.loop.longest()),
                    remote_storage_fault(observed.remote_storage()),
                ),
            )
            found += observed.replicas()
            found += observed.settings()
        found += missing_directory_faults(self.missing_directories())
        return sorted(found, key=lambda fault: FAULTS.index(fault.name))

    def not_ready(self) -> str | None:
        """Why clients should not come, None if they may."""
        return self._reason(self.faults())

    def _reason(self, faults: Sequence[Fault]) -> str | None:
        if self.phase is Phase.LOADING and self.load.logs:
            return f"{self.phase.value}: {progress_of(self.load)}"
        if self.phase is not Phase.RUNNING:
            return str(self.phase.value)
        return "; ".join(fault.problem for fault in faults if fault.stops) or None

    def warnings(self) -> list[str]:
        """The problems of a broker that is ready."""
        return [fault.problem for fault in self.faults() if not fault.stops]

    def document(self) -> dict[str, Any]:
        """The state as /statusz serves it; docs/operations.md has the fields."""
        faults = self.faults()
        reason = self._reason(faults)
        observed = self.observed
        found: dict[str, Any] = {
            "broker_id": None if observed is None else observed.broker_id,
            "cluster_id": None if observed is None else observed.cluster_id,
            "phase": self.phase.name.lower(),
            "uptime_seconds": round(self._now() - self._started, 1),
            "ready": reason is None,
            "reason": reason,
            "faults": [fault._asdict() for fault in faults],
            "log_directories": [
                {
                    "path": each.path,
                    "state": state_of(each),
                    "reason": each.append_error_reason,
                    "set_aside": len(each.set_aside),
                }
                for each in self.directories
            ],
            "logs": self.load.logs,
            "loaded_logs": self.load.loaded_logs,
            "recovery_bytes": self.load.recovery_bytes,
            "recovered_bytes": self.load.recovered_bytes,
            "zookeeper_connected": self.zookeeper_connected,
            "controller_id": -1 if observed is None else observed.controller_id(),
            "certificates": [
                {
                    "listener": name,
                    "expires_in_days": round((dates.not_after - self._now()) / _DAY_SECONDS, 2),
                    "not_before": dates.not_before,
                    "not_after": dates.not_after,
                    "rejected": dates.rejected,
                }
                for name, dates in self.certificates().items()
            ],
        }
        if self.worker is not None:
            found["worker"] = self.worker.number
            found["workers_of_machine"] = self.worker.workers
            found["machine"] = self.worker.machine
        if observed is not None:
            longest = observed.loop.longest()
            found["descriptors"] = observed.descriptors()._asdict()
            found["compactions"] = observed.compactions()
            found["traffic"] = observed.traffic()._asdict()
            found["event_loop"] = {
                "lag_seconds": round(observed.loop.lag_seconds, 3),
                "longest_turn_seconds": 0.0 if longest is None else round(longest.seconds, 3),
                "longest_turn": None if longest is None else longest.name,
            }
        return found

    def certificates(self) -> Mapping[str, CertificateDates]:
        """When the certificate of each listener is valid."""
        return {} if self.observed is None else self.observed.certificates()

    def certificate_seconds(self) -> dict[str, float]:
        """For how long the certificate of each listener is still valid; negative: it was."""
        now = self._now()
        return {name: dates.not_after - now for name, dates in self.certificates().items()}

    def directory_states(self) -> dict[tuple[str, ...], float]:
        """1 for the state that each directory is in: by (path, state)."""
        states: dict[tuple[str, ...], float] = {}
        for each in self.directories:
            now = state_of(each)
            for state in ("accepting", "full", "offline"):
                states[each.path, state] = int(state == now)
        return states


def _controller_fault(observed: Observed) -> Fault:
    """The fault of a broker to which no controller has sent metadata."""
    elected, address = observed.elected_controller()
    if elected in (-1, observed.broker_id):
        return controller_fault()
    return unreachable_fault(elected, address)


def progress_of(load: LoadProgress) -> str:
    """`3 of 40 logs are loaded`, and how much of the bytes to recover has been read."""
    text = f"{load.loaded_logs} of {load.logs} logs are loaded"
    whole = load.recovery_bytes
    if not whole:
        return text
    read, in_all = load.recovered_bytes // _MEBIBYTE, -(-whole // _MEBIBYTE)
    return f"{text}, recovery has read {read} of {in_all} MiB"


def state_of(directory: LogDirectory) -> str:
    """accepting, full or offline."""
    if directory.is_offline:
        return "offline"
    return "full" if directory.is_full else "accepting"


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
        """Log what has changed since the last look."""
        now = self._clock()
        if self._state.phase is Phase.STOPPING:  # nobody can mend a fault of this broker any more
            self._progress_at = now
            return
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
        if self._state.phase is Phase.RUNNING:
            self._progress_at = now
        elif now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            logger.info("Not ready yet: %s", self._state.not_ready())


def _about(fault: Fault) -> str:
    return f": {fault.subject}" if fault.subject else ""
