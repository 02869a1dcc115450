"""Builds tiered storage (KIP-405). Imported only by a broker that has it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
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
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.server.foundation import Foundation
    from ottla.controller.admin.topic_admin import NewTopic


def build_remote_logs(
    base: Foundation,
    client: InterBrokerClient,
    create_topics: Callable[[list[NewTopic]], Awaitable[dict[str, int]]],
) -> RemoteLogManager:
    """Raises ConfigError for a setting of the store that is wrong. Nothing is sent to it yet."""
    config, now_ms = base.config, base.clock.now_ms
    settings = RemoteLogSettings.parse(config)
    readers = WorkerPool(threads=settings.reader_threads, name="remote-log-reader")
    try:
        storage = open_remote_storage(
            settings.store,
            clock=time.monotonic,
            sleep=time.sleep,
            background=readers.post,
            sends_files=True,
            cluster_id=base.cluster_id,
        )
    except RemoteStorageSettingsError as error:
        prefix = config.remote_log_storage_manager_impl_prefix
        raise ConfigError(f"{prefix}*: {error}.") from None
    topic = RemoteLogMetadataTopic(base.metadata, client, create_topics, settings.metadata, now_ms)
    manager = RemoteLogManager(
        settings,
        RemoteLogMetadataManager(topic, settings.metadata),
        storage,
        base.broker_id,
        now_ms,
        readers,
        write_log_starts=base.logs.checkpoint_log_starts,
        names_remote_storage=lambda topic: (
            "remote.storage.enable" in base.dynamic_config.topic_overrides(topic)
        ),
    )
    manager.update_quotas(config)
    return manager


def build_remote_fetches(
    base: Foundation, remote_logs: RemoteLogManager, manager: ReplicaManager
) -> RemoteFetches:
    """What reads remote segments for the fetches of clients."""
    config = base.config
    reader = RemoteLogReader(
        remote_logs,
        remote_logs.readers,
        remote_logs.fetch_quota,
        base.clock.now_ms,
        threads=config.remote_log_reader_threads,
        max_pending_tasks=config.remote_log_reader_max_pending_tasks,
        index_cache_bytes=config.remote_log_index_file_cache_total_size_bytes,
        statistics=remote_logs.statistics,
    )
    return RemoteFetches(
        reader, base.timer, lambda: config.remote_fetch_max_wait_ms, manager.partitions.get
    )
