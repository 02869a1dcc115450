"""Metrics of replication, the controller, the log directories and the quotas."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ottla import __version__
from ottla.controller.state.context import ControllerGauges

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.metrics.statistics import MetricsRegistry, Reading
    from ottla.broker.quotas.client_quotas import ClientQuota, ClientQuotas, MutationQuota
    from ottla.broker.replication.fetcher_manager import FetcherManager
    from ottla.broker.replication.isr import IsrManager
    from ottla.controller.controller import Controller
    from ottla.storage.files.log_directory import LogDirectory

# Of Kafka's gauges of the controller those that are not offered by every broker.
_CONTROLLER_GAUGES = {
    "active_broker_count": ("brokers", "Registered brokers."),
    "global_topic_count": ("topics", "Topics of the cluster."),
    "global_partition_count": ("partitions", "Partitions of the cluster."),
    "offline_partitions_count": ("offline_partitions", "Partitions without a leader."),
    "preferred_replica_imbalance_count": (
        "preferred_replica_imbalance",
        "Partitions whose leader is not the preferred one.",
    ),
    "topics_to_delete_count": ("topics_to_delete", "Topics whose deletion is not finished."),
    "replicas_to_delete_count": ("replicas_to_delete", "Replicas that are still to be deleted."),
    "topics_ineligible_to_delete_count": (
        "topics_ineligible_to_delete",
        "Topics whose deletion waits, such as for a broker that is down.",
    ),
    "replicas_ineligible_to_delete_count": (
        "replicas_ineligible_to_delete",
        "Replicas whose deletion waits for their broker or failed.",
    ),
    "reassigning_partitions_count": (
        "reassigning_partitions",
        "Partitions of the cluster that are reassigned.",
    ),
}


def add_build(registry: MetricsRegistry) -> None:
    """The version, as a label: Prometheus' convention for texts."""
    labels = (__version__, platform.python_version())
    registry.gauge(
        "ottla_build_info",
        "1; the labels have the versions of Ottla and of Python.",
        lambda: {labels: 1},
        "version",
        "python_version",
    )


def add_replication(
    registry: MetricsRegistry, isr_manager: IsrManager, fetchers: FetcherManager
) -> None:
    """The ISR, and the lag of the followers here."""
    registry.counter(
        "ottla_isr_expands", "Followers that joined in-sync.", lambda: isr_manager.expands_total
    )
    registry.counter(
        "ottla_isr_shrinks", "Followers that fell out of sync.", lambda: isr_manager.shrinks_total
    )
    registry.counter(
        "ottla_isr_update_failures",
        "Changes of an ISR that the controller refused or that did not reach it.",
        lambda: isr_manager.failed_updates_total,
    )
    registry.gauge(
        "ottla_replica_max_lag_records",
        "The largest lag of a follower here behind its leader, in records, at its last fetch.",
        lambda: fetchers.max_lag,
    )


def add_directories(registry: MetricsRegistry, directories: Sequence[LogDirectory]) -> None:
    """Space and failures of the log directories."""
    registry.gauge(
        "ottla_log_directory_free_bytes",
        "Free bytes of the disk of a log directory, measured once a second; none while offline.",
        lambda: {
            (each.path,): each.last_free_bytes
            for each in directories
            if each.last_free_bytes is not None
        },
        "path",
    )
    registry.gauge(
        "ottla_offline_log_directories",
        "Log directories that failed, until the next start.",
        lambda: sum(each.is_offline for each in directories),
    )
    registry.gauge(
        "ottla_records_set_aside",
        "Logs and parts of logs that are set aside, see `ottla log set-aside list`.",
        lambda: {
            (each.path, reason): count
            for each in directories
            for reason, count in Counter(item.reason.value for item in each.set_aside).items()
        },
        "path",
        "reason",
    )


def add_quotas(registry: MetricsRegistry, quotas: ClientQuotas) -> None:
    """Throttling by kind of quota; the stage `throttle` of requests has it by API."""
    kinds: dict[str, ClientQuota | MutationQuota] = {
        "produce": quotas.produce,
        "fetch": quotas.fetch,
        "request": quotas.request,
        "controller_mutation": quotas.mutation,
    }

    registry.counter(
        "ottla_quota_throttled_requests",
        "Requests over a quota.",
        lambda: {(kind,): quota.throttled_total for kind, quota in kinds.items()},
        "quota",
    )
    registry.counter(
        "ottla_quota_throttle_seconds",
        "Throttle time that the quotas imposed.",
        lambda: {(kind,): quota.throttle_ms_total / 1000 for kind, quota in kinds.items()},
        "quota",
    )


def add_controller(
    registry: MetricsRegistry, controller: Controller, metadata: MetadataCache
) -> None:
    """The id of the controller, and on the active one its view of the cluster."""
    gauges = ControllerGauges()

    def compute() -> Iterator[None]:
        nonlocal gauges
        gauges = yield from controller.gauge_steps()

    def reader(field: str) -> Callable[[], Reading]:
        # Without a value on the other brokers, so that no sum or minimum over brokers is wrong.
        return lambda: {(): getattr(gauges, field)} if controller.is_active else {}

    registry.gauge(
        "ottla_active_controller",
        "1 on the broker that is the controller.",
        lambda: int(controller.is_active),
    )
    registry.gauge(
        "ottla_controller_id",
        "Broker id of the controller, of Ottla or Kafka, in the metadata here; -1 without one.",
        lambda: metadata.snapshot.controller_id,
    )
    registry.gauge(
        "ottla_live_brokers", "Registered brokers.", lambda: len(metadata.snapshot.brokers)
    )
    registry.preparations.append(compute)
    for field, (name, help_text) in _CONTROLLER_GAUGES.items():
        registry.gauge(
            f"ottla_controller_{name}",
            f"{help_text} Only on the controller.",
            reader(field),
        )
    registry.gauge(
        "ottla_controller_event_queue_size",
        "Events that the controller has not processed yet.",
        lambda: controller.queued_events,
    )
    registry.counter(
        "ottla_unclean_leader_elections",
        "Leaders elected out of the ISR while this broker was controller; records were lost.",
        lambda: controller.unclean_elections_total,
    )
