"""The settings `remote.log.*` of a broker (KIP-405)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ottla.broker.config.errors import ConfigError

#: The class of Aiven's plugin tiered-storage-for-apache-kafka, and its name here.
_STORAGE_MANAGERS = ("io.aiven.kafka.tieredstorage.RemoteStorageManager", "aiven")
_METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)


class RemoteLogNames(Protocol):
    """What `check_remote_log` reads."""

    remote_log_metadata_manager_class_name: str
    remote_log_storage_manager_class_name: str | None
    remote_log_storage_system_enable: bool


class MetadataListener(Protocol):
    """What `check_metadata_listener` reads."""

    remote_log_metadata_manager_listener_name: str | None
    remote_log_storage_system_enable: bool


class RemoteLogConfig:
    """What tiered storage reads of the broker's settings; a part of `BrokerConfig`."""

    given: dict[str, str]
    remote_fetch_max_wait_ms: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_expiration_thread_pool_size: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_manager_task_interval_ms: int
    remote_log_manager_task_retry_backoff_max_ms: int
    remote_log_manager_task_retry_backoff_ms: int
    remote_log_manager_task_retry_jitter: float
    remote_log_manager_thread_pool_size: int
    remote_log_metadata_custom_metadata_max_bytes: int
    remote_log_metadata_manager_class_name: str
    remote_log_metadata_manager_impl_prefix: str
    remote_log_metadata_manager_listener_name: str | None
    remote_log_reader_max_pending_tasks: int
    remote_log_reader_threads: int
    remote_log_storage_manager_class_name: str | None
    remote_log_storage_manager_impl_prefix: str
    remote_log_storage_system_enable: bool


def check_remote_log(config: RemoteLogNames) -> None:
    """Raises ConfigError for a class that is not what this broker has, if tiered storage is on."""
    if not config.remote_log_storage_system_enable:
        return
    name = config.remote_log_storage_manager_class_name
    if name not in _STORAGE_MANAGERS:
        problem = "is not set" if name is None else f"{name}: Java classes cannot be loaded here"
        raise ConfigError(
            f"remote.log.storage.manager.class.name {problem}. Set it to {_STORAGE_MANAGERS[0]}, "
            f"whose settings and objects this broker has, or to its short name aiven."
        )
    name = config.remote_log_metadata_manager_class_name
    if name != _METADATA_MANAGER:
        raise ConfigError(
            f"remote.log.metadata.manager.class.name {name}: Java classes cannot be loaded here. "
            "Drop the setting: this broker keeps the metadata in __remote_log_metadata, as "
            f"{_METADATA_MANAGER} does."
        )


def check_metadata_listener(config: MetadataListener, listeners: Sequence[str]) -> None:
    """Raises ConfigError, as in Kafka, for a listener that the broker does not have. This one uses
    the inter-broker listener, whatever is set."""
    name = config.remote_log_metadata_manager_listener_name
    if config.remote_log_storage_system_enable and name and name.upper() not in listeners:
        raise ConfigError(
            f"remote.log.metadata.manager.listener.name: there is no listener {name}; listeners "
            f"names {', '.join(sorted(listeners))}."
        )
