"""What every other part of a broker is built on: clocks, threads, settings, metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.features import FeatureCache
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.dynamic_config import DynamicConfig
from ottla.broker.config.policies import Policies
from ottla.broker.replication.group_commit import SYNCS_MAX
from ottla.broker.requests.held_responses import HeldResponses
from ottla.broker.runtime.clock import Clock, SystemClock
from ottla.broker.runtime.tasks import WorkerPool, spawn
from ottla.broker.runtime.timer import Timer
from ottla.broker.server.events import BrokerEvents
from ottla.controller.runtime import LoopRuntime
from ottla.controller.settings import parse_protocol_version
from ottla.storage.config import LogConfig

_NEWEST_FORMAT = "3.0-IV1"

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.metrics.telemetry.exported import ExportedMetrics
    from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.directories.log_manager import LogManager


class Foundation(NamedTuple):
    """`client_metrics` is None when no port would show what clients push."""

    config: BrokerConfig
    broker_id: int
    cluster_id: str
    store: ZnodeStore
    logs: LogManager
    clock: Clock
    timer: Timer
    workers: WorkerPool
    flush_workers: WorkerPool
    runtime: LoopRuntime
    events: BrokerEvents
    held: HeldResponses
    broker_epoch: BrokerEpoch
    metadata: MetadataCache
    dynamic_config: DynamicConfig
    features: FeatureCache
    policies: Policies
    client_metrics: tuple[ClientMetricsManager, ExportedMetrics] | None


def build_foundation(
    config: BrokerConfig, identity: tuple[int, str], store: ZnodeStore, logs: LogManager
) -> Foundation:
    """`identity` is the broker id and the cluster id. Raises ConfigError for a policy that cannot
    be used."""
    broker_id, cluster_id = identity
    clock, runtime, events = SystemClock(), LoopRuntime(spawn), BrokerEvents()
    return Foundation(
        config=config,
        broker_id=broker_id,
        cluster_id=cluster_id,
        store=store,
        logs=logs,
        clock=clock,
        timer=Timer(),
        workers=WorkerPool(threads=config.ottla_worker_threads),
        flush_workers=WorkerPool(threads=SYNCS_MAX, name="flush"),
        runtime=runtime,
        events=events,
        held=HeldResponses(),
        broker_epoch=BrokerEpoch(),
        metadata=MetadataCache(),
        dynamic_config=DynamicConfig(
            store, runtime, config, broker_id, log_config_factory(config), events
        ),
        features=FeatureCache(store, runtime, {}),
        policies=Policies(config),
        client_metrics=_client_metrics(config, clock.monotonic),
    )


def log_config_factory(config: BrokerConfig) -> Callable[[dict[str, str]], LogConfig]:
    """As in Kafka, `remote.storage.enable` has no effect on a broker without tiered storage, and
    `message.format.version` none from `inter.broker.protocol.version` 3.0 on."""
    overrides = {"has.remote.storage": str(config.remote_log_storage_system_enable).lower()}
    if not config.remote_log_storage_system_enable:
        overrides["remote.storage.enable"] = "false"
    if parse_protocol_version(config.inter_broker_protocol_version) >= (3, 0, 0):
        overrides["message.format.version"] = _NEWEST_FORMAT
    return lambda properties: LogConfig.from_properties({**properties, **overrides})


def _client_metrics(
    config: BrokerConfig, monotonic: Callable[[], float]
) -> tuple[ClientMetricsManager, ExportedMetrics] | None:
    if not config.ottla_metrics_address:
        return None
    from ottla.broker.metrics.telemetry.exported import ExportedMetrics
    from ottla.broker.metrics.telemetry.manager import ClientMetricsManager

    exported = ExportedMetrics()
    manager = ClientMetricsManager(
        config.telemetry_max_bytes, lambda: int(monotonic() * 1000), exported.forget
    )
    return manager, exported
