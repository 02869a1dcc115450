"""The settings `remote.log.*` of a broker with tiered storage, and where its store is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from ottla.broker.config.errors import ConfigError

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig


_PREFIX = "remote.log.metadata."


@dataclass(frozen=True, slots=True)
class RemoteLogMetadataSettings:
    """Kafka's defaults."""

    topic_replication_factor: int = 3
    topic_num_partitions: int = 50
    #: -1: unlimited. Metadata that expires makes its segments unreachable, so it is recommended to
    #: be longer than the retention of every topic.
    topic_retention_ms: int = -1
    #: How long a writer waits until this broker has read the record back.
    consume_wait_ms: int = 120_000
    initialization_retry_max_timeout_ms: int = 120_000
    initialization_retry_interval_ms: int = 100

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> RemoteLogMetadataSettings:
        """From settings without the prefix `rlmm.config.`; unknown ones are ignored, as in Kafka.

        Raises ConfigError.
        """
        values: dict[str, int] = {}
        for each in fields(cls):
            name = _PREFIX + each.name.replace("_", ".")
            text = settings.get(name)
            if text is None:
                continue
            try:
                value = int(text)
            except ValueError:
                raise ConfigError(f"{name}={text!r} is not a number") from None
            lowest = 1 if each.name in ("topic_replication_factor", "topic_num_partitions") else 0
            is_retention = each.name == "topic_retention_ms"
            if value < lowest and not (is_retention and value == -1):
                raise ConfigError(f"{name}={value} is lower than {lowest}")
            if is_retention and value == 0:
                raise ConfigError(f"{name}=0 would delete the metadata: use -1 or a positive value")
            values[each.name] = value
        return cls(**values)


@dataclass(frozen=True, slots=True)
class RemoteLogSettings:
    """Kafka's defaults. Quotas change at run time: see `RemoteLogManager.update_quotas`."""

    task_interval_ms: int = 30_000
    retry_backoff_ms: int = 500
    retry_backoff_max_ms: int = 30_000
    #: Between 0 and 0.5: intervals and back-offs vary by this part of them in both directions.
    jitter: float = 0.2
    copier_threads: int = 10
    expiration_threads: int = 10
    reader_threads: int = 10
    max_custom_metadata_bytes: int = 128
    #: (number of samples, seconds of a sample).
    copy_quota_window: tuple[int, int] = (11, 1)
    fetch_quota_window: tuple[int, int] = (11, 1)
    metadata: RemoteLogMetadataSettings = field(default_factory=RemoteLogMetadataSettings)
    #: The settings of the store, without the prefix `rsm.config.`.
    store: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, config: BrokerConfig) -> RemoteLogSettings:
        """Raises ConfigError for a setting `rlmm.config.*`; the store checks its own ones."""
        threads = config.remote_log_manager_thread_pool_size
        copiers = config.remote_log_manager_copier_thread_pool_size
        expirers = config.remote_log_manager_expiration_thread_pool_size
        prefix = config.remote_log_metadata_manager_impl_prefix
        return cls(
            task_interval_ms=config.remote_log_manager_task_interval_ms,
            retry_backoff_ms=config.remote_log_manager_task_retry_backoff_ms,
            retry_backoff_max_ms=config.remote_log_manager_task_retry_backoff_max_ms,
            jitter=config.remote_log_manager_task_retry_jitter,
            copier_threads=threads if copiers < 0 else copiers,
            expiration_threads=threads if expirers < 0 else expirers,
            reader_threads=config.remote_log_reader_threads,
            max_custom_metadata_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
            copy_quota_window=(
                config.remote_log_manager_copy_quota_window_num,
                config.remote_log_manager_copy_quota_window_size_seconds,
            ),
            fetch_quota_window=(
                config.remote_log_manager_fetch_quota_window_num,
                config.remote_log_manager_fetch_quota_window_size_seconds,
            ),
            metadata=RemoteLogMetadataSettings.parse(with_prefix(config.given, prefix)),
            store=with_prefix(config.given, config.remote_log_storage_manager_impl_prefix),
        )


def with_prefix(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The settings that begin with `prefix`, without it."""
    return {
        name.removeprefix(prefix): text for name, text in given.items() if name.startswith(prefix)
    }
