from types import SimpleNamespace
from typing import Any

from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.observability import metrics_sources as partition_totals
from ottla.broker.observability.metrics_sources import add_partitions


def hosted(isr: int, replicas: int = 3, *, leads: bool = True, **more: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "offline": False,
        "is_leader": leads,
        "log": SimpleNamespace(size_in_bytes=100),
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
        hosted(2, adding_replicas=[4]),
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
    assert len(list(steps())) == 2
    assert {metric.name: metric.read() for metric in registry.metrics} == {
        "ottla_partitions": 5,
        "ottla_leaders": 3,
        "ottla_under_replicated_partitions": 2,
        "ottla_under_min_isr_partitions": 1,
        "ottla_at_min_isr_partitions": 1,
        "ottla_reassigning_partitions": 1,
        "ottla_offline_replicas": 1,
        "ottla_log_size_bytes": 400,
        "ottla_offline_partitions": 1,
    }


def test_many_partitions_take_many_steps() -> None:
    count = 4 * partition_totals._PARTITIONS_IN_A_STEP
    replicas: Any = SimpleNamespace(partitions={n: hosted(3) for n in range(count)})
    metadata: Any = SimpleNamespace(snapshot=SimpleNamespace(topics={}))
    totals = partition_totals.PartitionTotals(replicas, metadata)
    steps = totals.steps()
    for _ in range(4):
        next(steps)
        replicas.partitions.popitem()
    assert list(steps) == []
    assert totals.values["leaders"] == count
