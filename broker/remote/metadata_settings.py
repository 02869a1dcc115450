"""The settings `rlmm.config.remote.log.metadata.*`. Mirrors the configuration of Kafka's
TopicBasedRemoteLogMetadataManager: names, defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ottla.broker.config.errors import ConfigError

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
        for field in fields(cls):
            name = _PREFIX + field.name.replace("_", ".")
            text = settings.get(name)
            if text is None:
                continue
            try:
                value = int(text)
            except ValueError:
                raise ConfigError(f"{name}={text!r} is not a number") from None
            lowest = 1 if field.name in ("topic_replication_factor", "topic_num_partitions") else 0
            is_retention = field.name == "topic_retention_ms"
            if value < lowest and not (is_retention and value == -1):
                raise ConfigError(f"{name}={value} is lower than {lowest}")
            if is_retention and value == 0:
                raise ConfigError(f"{name}=0 would delete the metadata: use -1 or a positive value")
            values[field.name] = value
        return cls(**values)
