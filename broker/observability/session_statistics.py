"""What became of the session with ZooKeeper: Kafka's SessionExpireListener."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.controller.tree.store import SESSION_CONNECTED, SESSION_EXPIRED, SESSION_SUSPENDED

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import MetricsRegistry

_STATES = (SESSION_CONNECTED, SESSION_SUSPENDED, SESSION_EXPIRED)


class Sessions(Protocol):
    """The znode store, as far as it reports its session."""

    def on_session(self, callback: Callable[[str], None]) -> object: ...


class SessionStatistics:
    """Counts from its construction on, which is when the session is connected. Loop only."""

    def __init__(self, store: Sessions) -> None:
        self.state = SESSION_CONNECTED
        self.counts = dict.fromkeys(_STATES, 0)
        store.on_session(self._changed)

    def _changed(self, event: str) -> None:
        if event in self.counts:
            self.state = event
            self.counts[event] += 1


def add_session(registry: MetricsRegistry, session: SessionStatistics) -> None:
    """The state of the session and how often it changed."""
    registry.gauge(
        "ottla_zookeeper_session_state",
        "1 for the state of the session with ZooKeeper: connected, suspended or expired.",
        lambda: {(state,): int(state == session.state) for state in _STATES},
        "state",
    )
    registry.counter(
        "ottla_zookeeper_disconnects",
        "How often the connection to ZooKeeper broke.",
        lambda: session.counts[SESSION_SUSPENDED],
    )
    registry.counter(
        "ottla_zookeeper_session_expirations",
        "How often the session with ZooKeeper expired; each time this broker registered again.",
        lambda: session.counts[SESSION_EXPIRED],
    )
