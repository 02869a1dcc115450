"""What state the broker is in, for /readyz and metrics.

A broker is ready when it has joined its cluster and one of its log directories accepts appends.
It stays ready while ZooKeeper is away, because produce and fetch requests continue; the response
to /readyz names what does not work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from ottla.controller.tree.store import SESSION_CONNECTED
from ottla.storage.files.log_directory import LogDirectory

_MEBIBYTE = 1 << 20


class Phase(Enum):
    """In the order of a start; the value is the text of /readyz."""

    STARTING = "the broker is starting"
    CONNECTING = "the broker waits for ZooKeeper"
    LOADING = "the broker is loading its logs"
    JOINING = "the broker is joining the cluster"
    RUNNING = "the broker serves clients"
    STOPPING = "the broker is stopping"


class Sessions(Protocol):
    """The znode store, as far as it reports its session."""

    def on_session(self, callback: Callable[[str], None]) -> object: ...


class BrokerState:
    """Written by the server that starts and stops; any thread may report recovered bytes."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self.directories = directories
        self.phase = Phase.STARTING
        #: Bytes of segments that recovery has read after an unclean shutdown.
        self.recovered_bytes = 0
        #: Whether the session with ZooKeeper is connected; true for a broker without ZooKeeper.
        self.zookeeper_connected = False

    def watch(self, store: Sessions) -> None:
        """Follows the session of a store that is connected."""
        self.zookeeper_connected = True
        store.on_session(self._session_changed)

    def _session_changed(self, event: str) -> None:
        self.zookeeper_connected = event == SESSION_CONNECTED

    def add_recovered_bytes(self, count: int) -> None:
        """A worker thread has read that much. Two threads may lose a count: it is for people."""
        self.recovered_bytes += count

    def not_ready(self) -> str | None:
        """Why clients should not come, None if they may."""
        if self.phase is Phase.LOADING and self.recovered_bytes:
            recovered = self.recovered_bytes // _MEBIBYTE
            return f"{self.phase.value}: recovery has read {recovered} MiB"
        if self.phase is not Phase.RUNNING:
            return str(self.phase.value)
        if all(each.append_error is not None for each in self.directories):
            return "; ".join(self._directory_problems())
        return None

    def warnings(self) -> list[str]:
        """What does not work although the broker is ready."""
        found = self._directory_problems()
        if self.phase is Phase.RUNNING and not self.zookeeper_connected:
            found.append(
                "ZooKeeper is not connected: topics, settings and leaders do not change until it is"
            )
        return found

    def _directory_problems(self) -> list[str]:
        return [
            f"log directory {each.path} accepts no records: {each.append_error_reason}"
            for each in self.directories
            if each.append_error is not None
        ]

    def directory_states(self) -> dict[tuple[str, ...], float]:
        """1 for the state that each directory is in: by (path, state)."""
        states: dict[tuple[str, ...], float] = {}
        for each in self.directories:
            now = "offline" if each.is_offline else "full" if each.is_full else "accepting"
            for state in ("accepting", "full", "offline"):
                states[each.path, state] = int(state == now)
        return states
