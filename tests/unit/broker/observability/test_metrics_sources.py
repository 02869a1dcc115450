import pytest

from ottla.broker.metrics.statistics import (
    STAGES,
    HistogramReadings,
    MetricsRegistry,
    Reading,
)
from ottla.broker.observability import metrics_sources
from ottla.broker.observability.metrics_sources import (
    add_fetch_sessions,
    add_network,
    add_process,
    add_purgatories,
    add_requests,
)
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.replication.fetch_sessions import FetchSessionCache
from ottla.broker.runtime.timer import ManualTimer
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.doubles.network import metadata_request, running_network


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
