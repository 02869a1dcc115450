"""The state of the broker as metrics; served from the first moment of a start on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.observability.faults import FAULTS

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import MetricsRegistry, Reading
    from ottla.broker.observability.broker_state import BrokerState


def add_state(registry: MetricsRegistry, state: BrokerState) -> None:
    """Readiness, faults, directories, recovery, ZooKeeper, certificates and the event loop."""
    registry.gauge(
        "ottla_ready",
        "1 if the broker is ready for clients, as /readyz says.",
        lambda: int(state.not_ready() is None),
    )

    def faults() -> Reading:
        found = Counter(fault.name for fault in state.faults())
        return {(name,): found[name] for name in FAULTS}

    registry.gauge("ottla_faults", "What is wrong now, by the name of the fault.", faults, "fault")
    registry.gauge(
        "ottla_log_directory_state",
        "1 for the state of a log directory: accepting, full or offline.",
        state.directory_states,
        "path",
        "state",
    )
    registry.gauge(
        "ottla_zookeeper_connected",
        "1 while the session with ZooKeeper is connected, or the broker runs without ZooKeeper.",
        lambda: int(state.zookeeper_connected),
    )
    registry.gauge(
        "ottla_recovered_bytes",
        "Bytes that the recovery of the logs read at the last start.",
        lambda: state.load.recovered_bytes,
    )
    registry.gauge(
        "ottla_remaining_logs_to_load",
        "Logs that the start has not loaded yet.",
        lambda: {(path,): part.remaining_logs for path, part in state.load.directories.items()},
        "path",
    )
    registry.gauge(
        "ottla_remaining_bytes_to_recover",
        "Bytes that the recovery of the logs has not read yet.",
        lambda: {(path,): part.remaining_bytes for path, part in state.load.directories.items()},
        "path",
    )

    def certificates() -> Reading:
        return {(name,): seconds for name, seconds in state.certificate_seconds().items()}

    registry.gauge(
        "ottla_certificate_expires_in_seconds",
        "For how long the certificate of a listener is still valid; negative when it has expired.",
        certificates,
        "listener",
    )
    registry.gauge(
        "ottla_certificate_not_before_timestamp_seconds",
        "From when on the certificate of a listener is valid, in seconds since 1970.",
        lambda: {(name,): dates.not_before for name, dates in state.certificates().items()},
        "listener",
    )
    registry.gauge(
        "ottla_certificate_not_after_timestamp_seconds",
        "Until when the certificate of a listener is valid, in seconds since 1970.",
        lambda: {(name,): dates.not_after for name, dates in state.certificates().items()},
        "listener",
    )
    registry.gauge(
        "ottla_certificate_renewal_rejected",
        "1 while a listener keeps its certificate because the new one in its key store is worse.",
        lambda: {
            (name,): 1.0 if dates.rejected else 0.0 for name, dates in state.certificates().items()
        },
        "listener",
    )

    def lag() -> float:
        return 0.0 if state.observed is None else state.observed.loop.lag_seconds

    def longest_turn() -> float:
        turn = None if state.observed is None else state.observed.loop.longest()
        return 0.0 if turn is None else turn.seconds

    registry.gauge(
        "ottla_loop_lag_seconds", "By how much the last heartbeat of the event loop was late.", lag
    )
    registry.gauge(
        "ottla_loop_longest_recent_turn_seconds",
        "The longest blocked turn of the event loop in the last minute.",
        longest_turn,
    )
