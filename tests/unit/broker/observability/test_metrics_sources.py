from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.metrics.loop_stalls import LoopHealth
from ottla.broker.metrics.statistics import (
    STAGES,
    HistogramReadings,
    MetricsRegistry,
    Reading,
    Traffic,
)
from ottla.broker.net.descriptors import Descriptors
from ottla.broker.observability import metrics_sources
from ottla.broker.observability.broker_state import BrokerState, Observed, Phase
from ottla.broker.observability.faults import FAULTS
from ottla.broker.observability.metrics_sources import (
    PartitionTotals,
    SessionStatistics,
    add_fetch_sessions,
    add_network,
    add_partitions,
    add_process,
    add_purgatories,
    add_requests,
    add_session,
    add_state,
    end_offset_reader,
)
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.fetch_sessions import FetchSessionCache
from ottla.broker.security.tls.certificate_dates import CertificateDates
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.topics import TopicPartition
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory
from tests.doubles.manual_timer import ManualTimer
from tests.doubles.network import metadata_request, running_network
from tests.doubles.replicas import TOPIC, Replicas


def readings(registry: MetricsRegistry) -> dict[str, Reading | HistogramReadings]:
    return {metric.name: metric.read() for metric in registry.metrics}


async def test_the_network_and_its_requests() -> None:
    async with running_network() as network:
        registry = MetricsRegistry()
        add_network(registry, network.server)
        add_requests(registry, network.channel)
        client = await network.connect()
        for _ in range(2):
            await client.ask(metadata_request(), 1)
        found = readings(registry)
        assert found["ottla_network_received_bytes"] == network.statistics.bytes_in
        assert found["ottla_connections_open"] == {("PLAINTEXT",): 1}
        assert found["ottla_requests"] == {("Metadata", "1"): 2}
        assert found["ottla_request_errors"] == {("Metadata",): 0}
        stages = found["ottla_request_stage_seconds"]
        assert isinstance(stages, dict)
        assert list(stages) == [("Metadata", stage) for stage in STAGES]
        busy = found["ottla_request_handler_busy_seconds"]
        assert isinstance(busy, float)
        assert 0 < busy < 60
        assert found["ottla_request_queue_size"] == 0


async def test_client_software_has_a_bounded_number_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_sources, "MAX_SOFTWARE_NAMES", 2)
    async with running_network() as network:
        registry = MetricsRegistry()
        add_network(registry, network.server)
        for name in ("a", "a", "a", "b", "b", "c", "d"):
            client = await network.connect()
            await client.ask(ApiVersionsRequest(name, "1"), 3)
        assert readings(registry)["ottla_client_software_connections"] == {
            ("a", "1"): 3,
            ("b", "1"): 2,
            ("other", ""): 2,
        }


def test_fetch_sessions() -> None:
    registry = MetricsRegistry()
    cache = FetchSessionCache(1)
    add_fetch_sessions(registry, cache)
    assert cache.create(False, 3, True, 0) is not None
    assert cache.create(True, 5, True, 0) is not None  # a follower's, which has precedence
    found = readings(registry)
    assert found["ottla_fetch_sessions"] == 1
    assert found["ottla_fetch_session_partitions"] == 0
    assert found["ottla_fetch_session_evictions"] == 1


async def test_purgatories_and_the_process() -> None:
    async with running_network() as network:
        registry = MetricsRegistry()
        purgatory = Purgatory("Produce", ManualTimer())
        purgatory.expired_total = 7
        add_purgatories(registry, [purgatory])
        add_process(registry, network.pool)
        found = readings(registry)
        assert found["ottla_purgatory_delayed"] == {("Produce",): 0}
        assert found["ottla_purgatory_expired"] == {("Produce",): 7}
        assert found["ottla_tasks"] == 8  # the request handlers
        assert found["ottla_worker_pool_accepted"] == 0


def test_the_high_watermark_of_partitions_that_are_led_here() -> None:
    replicas = Replicas()
    replicas.lead()
    replicas.append(3)
    replicas.follow(2, 1)
    read = end_offset_reader(replicas.manager)
    assert read(TopicPartition(TOPIC, 0)) == replicas.log().high_watermark == 3
    assert read(TopicPartition(TOPIC, 1)) is None
    assert read(TopicPartition("other", 0)) is None


def hosted(isr: int, replicas: int = 3, *, leads: bool = True, **more: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "offline": False,
        "is_leader": leads,
        "log": SimpleNamespace(local=SimpleNamespace(size_in_bytes=100)),
        "isr": range(isr),
        "replicas": range(replicas),
        "adding_replicas": [],
        "removing_replicas": [],
        "effective_min_isr": lambda: 2,
    }
    return SimpleNamespace(**{**defaults, **more})


def test_sums_over_partitions() -> None:
    partitions = [
        hosted(3),
        hosted(2, adding_replicas=[2]),  # does not count as under-replicated until it is in sync
        hosted(1),
        hosted(0, leads=False),
        hosted(0, leads=False, offline=True, log=None),
    ]
    topics = {"a": SimpleNamespace(partitions={0: SimpleNamespace(leader=-1)})}
    replicas: Any = SimpleNamespace(partitions=dict(enumerate(partitions)))
    metadata: Any = SimpleNamespace(snapshot=SimpleNamespace(topics=topics))
    registry = MetricsRegistry()
    add_partitions(registry, replicas, metadata)
    (steps,) = registry.preparations
    assert len(list(steps())) == 6
    assert {metric.name: metric.read() for metric in registry.metrics} == {
        "ottla_partitions": 5,
        "ottla_leaders": 3,
        "ottla_under_replicated_partitions": 1,
        "ottla_under_min_isr_partitions": 1,
        "ottla_at_min_isr_partitions": 1,
        "ottla_reassigning_partitions": 1,
        "ottla_offline_replicas": 1,
        "ottla_log_size_bytes": 400,
        "ottla_offline_partitions": 1,
    }


def test_partitions_may_go_between_two_steps() -> None:
    count = 100
    replicas: Any = SimpleNamespace(partitions={n: hosted(3) for n in range(count)})
    metadata: Any = SimpleNamespace(snapshot=SimpleNamespace(topics={}))
    totals = PartitionTotals(replicas, metadata)
    steps = totals.steps()
    for _ in range(4):
        next(steps)
        replicas.partitions.popitem()
    assert len(list(steps)) == count - 4
    assert totals.values["leaders"] == count


class Store:
    def on_session(self, callback: Callable[[str], None]) -> None:
        self.notify = callback


def test_states_and_how_often_they_began() -> None:
    store, registry = Store(), MetricsRegistry()
    session = SessionStatistics(store)
    add_session(registry, session)
    for event in ("suspended", "connected", "suspended", "expired", "strange"):
        store.notify(event)
    found = {metric.exposed_name: metric.read() for metric in registry.metrics}
    assert found == {
        "ottla_zookeeper_session_state": {
            ("connected",): 0,
            ("suspended",): 0,
            ("expired",): 1,
        },
        "ottla_zookeeper_disconnects_total": 2,
        "ottla_zookeeper_session_expirations_total": 1,
    }


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
        compactions=lambda: 2,
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
    assert document["compactions"] == 2
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
