"""The metrics of the state, before and after the broker has its parts."""

from __future__ import annotations

from pathlib import Path

from ottla.broker.metrics.loop_health import LoopHealth
from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.metrics.traffic import Traffic
from ottla.broker.net.descriptors import Descriptors
from ottla.broker.observability.broker_state import BrokerState, Observed, Phase
from ottla.broker.observability.faults import FAULTS
from ottla.broker.observability.state_metrics import add_state
from ottla.broker.security.tls.certificate_dates import CertificateDates
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory

DAY = 86_400


def test_readings(tmp_path: Path) -> None:
    directory = LogDirectory(RealFileSystem(), str(tmp_path))
    state = BrokerState([directory], now=lambda: 10.0 * DAY)
    registry = MetricsRegistry()
    add_state(registry, state)
    reading = {metric.name: metric.read for metric in registry.metrics}
    assert reading["ottla_ready"]() == 0
    assert reading["ottla_certificate_expires_in_seconds"]() == {}
    assert reading["ottla_loop_lag_seconds"]() == 0.0

    health = LoopHealth(lambda: 0.0)
    health.blocked(3.0, 3.0, "Fetch")
    health.lag_seconds = 0.5
    certificates = {"SSL": CertificateDates(0.0, 9.0 * DAY)}
    state.observed = Observed(
        *(1, "c", 2, lambda: -1, lambda: certificates, lambda: Descriptors(1, 100, 10), health),
        traffic=lambda: Traffic(3, 4, 5),
    )
    state.phase = Phase.RUNNING
    directory.mark_full("no room")
    assert reading["ottla_ready"]() == 0
    faults = reading["ottla_faults"]()
    assert isinstance(faults, dict)
    assert {name for (name,), count in faults.items() if count} == {
        *("log-directory-full", "zookeeper-disconnected", "no-controller"),
        *("certificate-expired", "event-loop-blocked"),
    }
    assert list(faults) == [(name,) for name in FAULTS]
    assert reading["ottla_certificate_expires_in_seconds"]() == {("SSL",): -DAY}
    assert reading["ottla_loop_lag_seconds"]() == 0.5
    assert reading["ottla_loop_longest_recent_turn_seconds"]() == 3.0

    document = state.document()
    assert document["ready"] is False
    assert document["descriptors"] == Descriptors(1, 100, 10)._asdict()
    assert document["traffic"] == {"received_bytes": 3, "sent_bytes": 4, "requests": 5}
    assert document["certificates"] == [
        {
            "listener": "SSL",
            "expires_in_days": -1.0,
            "not_before": 0.0,
            "not_after": 9.0 * DAY,
            "rejected": "",
        }
    ]
    assert reading["ottla_certificate_not_before_timestamp_seconds"]() == {("SSL",): 0.0}
    assert reading["ottla_certificate_not_after_timestamp_seconds"]() == {("SSL",): 9.0 * DAY}
    assert reading["ottla_certificate_renewal_rejected"]() == {("SSL",): 0.0}
    assert document["event_loop"]["longest_turn"] == "Fetch"
