"""Builds tiered storage (KIP-405). Imported only by a broker that has it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.config.errors import ConfigError
from ottla.broker.remote.metadata_manager import RemoteLogMetadataManager
from ottla.broker.remote.metadata_topic import RemoteLogMetadataTopic
from ottla.broker.remote.remote_log_manager import RemoteLogManager
from ottla.broker.remote.remote_log_reader import RemoteLogReader
from ottla.broker.remote.settings import RemoteLogSettings
from ottla.broker.replication.delayed_remote_fetch import RemoteFetches
from ottla.broker.runtime.tasks import WorkerPool
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.store_settings import RemoteStorageSettingsError

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import Timer
    from ottla.controller.admin.topic_admin import NewTopic


def build_remote_logs(
    config: BrokerConfig,
    clock: Clock,
    identity: tuple[int, str],
    metadata: MetadataCache,
    client: InterBrokerClient,
    create_topics: Callable[[list[NewTopic]], Awaitable[dict[str, int]]],
    write_log_starts: Callable[[], object],
    topic_overrides: Callable[[str], Mapping[str, str]],
) -> RemoteLogManager:
    """`identity` is the broker id and the cluster id; `topic_overrides` are a topic's settings.

    Raises ConfigError for a wrong setting of the store. Nothing is sent to it yet.
    """
    now_ms = clock.now_ms
    broker_id, cluster_id = identity
    settings = RemoteLogSettings.parse(config)
    readers = WorkerPool(threads=settings.reader_threads, name="remote-log-reader")
    try:
        storage = open_remote_storage(
            settings.store,
            clock=time.monotonic,
            sleep=time.sleep,
            background=readers.post,
            sends_files=True,
            cluster_id=cluster_id,
        )
    except RemoteStorageSettingsError as error:
        prefix = config.remote_log_storage_manager_impl_prefix
        raise ConfigError(f"{prefix}*: {error}.") from None
    topic = RemoteLogMetadataTopic(metadata, client, create_topics, settings.metadata, now_ms)
    manager = RemoteLogManager(
        settings,
        RemoteLogMetadataManager(topic, settings.metadata),
        storage,
        broker_id,
        now_ms,
        readers,
        write_log_starts=write_log_starts,
        names_remote_storage=lambda topic: "remote.storage.enable" in topic_overrides(topic),
    )
    manager.update_quotas(config)
    return manager


def build_remote_fetches(
    config: BrokerConfig,
    clock: Clock,
    timer: Timer,
    remote_logs: RemoteLogManager,
    manager: ReplicaManager,
) -> RemoteFetches:
    """The reads of remote segments for the fetches of clients."""
    reader = RemoteLogReader(
        remote_logs,
        remote_logs.readers,
        remote_logs.fetch_quota,
        clock.now_ms,
        threads=config.remote_log_reader_threads,
        max_pending_tasks=config.remote_log_reader_max_pending_tasks,
        index_cache_bytes=config.remote_log_index_file_cache_total_size_bytes,
        statistics=remote_logs.statistics,
    )
    return RemoteFetches(
        reader, timer, lambda: config.remote_fetch_max_wait_ms, manager.partitions.get
    )
