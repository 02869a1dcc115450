from types import SimpleNamespace
from typing import Any

from ottla import __version__
from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.observability import cluster_metrics
from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.controller.state.context import ControllerGauges
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.set_aside import of_files


def readings(registry: MetricsRegistry) -> dict[str, Any]:
    for preparation in registry.preparations:
        for _ in preparation():
            pass
    return {metric.exposed_name: metric.read() for metric in registry.metrics}


def test_build_info() -> None:
    registry = MetricsRegistry()
    cluster_metrics.add_build(registry)
    ((version, _),) = readings(registry)["ottla_build_info"]
    assert version == __version__


def test_replication() -> None:
    registry = MetricsRegistry()
    isr: Any = SimpleNamespace(expands_total=1, shrinks_total=2, failed_updates_total=3)
    fetchers: Any = SimpleNamespace(max_lag=4)
    cluster_metrics.add_replication(registry, isr, fetchers)
    assert readings(registry) == {
        "ottla_isr_expands_total": 1,
        "ottla_isr_shrinks_total": 2,
        "ottla_isr_update_failures_total": 3,
        "ottla_replica_max_lag_records": 4,
    }


def test_directories() -> None:
    registry = MetricsRegistry()
    good, new, bad = (LogDirectory(RealFileSystem(), path) for path in ("/good", "/new", "/bad"))
    cluster_metrics.add_directories(registry, [good, new, bad])
    good.note_set_aside(of_files(("1.log.overlap.set-aside", "x.set-aside"), "/good", "t", 0))
    good.update_free_bytes(500, 100)
    bad.update_free_bytes(500, 100)
    bad.update_free_bytes(OSError(5, "broken"), 100)
    assert readings(registry) == {
        "ottla_log_directory_free_bytes": {("/good",): 500},
        "ottla_offline_log_directories": 1,
        "ottla_records_set_aside": {("/good", "overlap"): 1, ("/good", "unknown"): 1},
    }


def test_quotas() -> None:
    registry, quotas = MetricsRegistry(), ClientQuotas()
    cluster_metrics.add_quotas(registry, quotas)
    quotas.fetch.table.set("u", "", 10.0)
    assert quotas.fetch.record("u", "c", 5, 1_000) == 0
    throttle_ms = quotas.fetch.record("u", "c", 500, 1_000)
    assert throttle_ms > 0
    quotas.mutation.table.set("u", "", 0.1)
    mutation_ms = quotas.mutation.record("u", "c", 50, 1_000)
    assert mutation_ms > 0
    found = readings(registry)
    assert found["ottla_quota_throttled_requests_total"] == {
        ("produce",): 0,
        ("fetch",): 1,
        ("request",): 0,
        ("controller_mutation",): 1,
    }
    seconds = found["ottla_quota_throttle_seconds_total"]
    assert seconds["fetch",] == throttle_ms / 1000
    assert seconds["controller_mutation",] == mutation_ms / 1000


class Controller:
    is_active = True
    queued_events = 2
    unclean_elections_total = 1

    def gauge_steps(self) -> Any:
        yield
        return ControllerGauges(global_topic_count=7)


def test_only_the_controller_knows_the_cluster() -> None:
    registry, controller = MetricsRegistry(), Controller()
    metadata: Any = SimpleNamespace(snapshot=SimpleNamespace(controller_id=3, brokers=[1, 2]))
    fake: Any = controller
    cluster_metrics.add_controller(registry, fake, metadata)
    found = readings(registry)
    assert found["ottla_controller_topics"] == {(): 7}
    assert found["ottla_unclean_leader_elections_total"] == 1
    assert found["ottla_controller_event_queue_size"] == 2
    assert (found["ottla_controller_id"], found["ottla_live_brokers"]) == (3, 2)
    controller.is_active = False
    found = readings(registry)
    assert found["ottla_controller_topics"] == {}
    assert found["ottla_active_controller"] == 0
