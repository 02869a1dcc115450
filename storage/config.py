"""The settings of one log, typed and immutable. Names are Kafka's, with `_` for `.`."""

from __future__ import annotations

from collections.abc import Mapping

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
COMPACT = "compact"
DELETE = "delete"
NO_LIMIT = 0x7FFFFFFFFFFFFFFF
#: Of `local.retention.ms` and `local.retention.bytes`.
SAME_AS_RETENTION = -2

# Defaults of Kafka 3.9 for a topic without settings of its own.
DEFAULTS: dict[str, object] = {
    "cleanup_policy": (DELETE,),
    "compression_type": "producer",
    "compression_gzip_level": -1,
    "compression_lz4_level": 9,
    "compression_zstd_level": 3,
    "delete_retention_ms": 86_400_000,
    "file_delete_delay_ms": 60_000,
    "flush_messages": NO_LIMIT,
    "flush_ms": NO_LIMIT,
    "has_remote_storage": False,
    "index_interval_bytes": 4096,
    "local_retention_bytes": SAME_AS_RETENTION,
    "local_retention_ms": SAME_AS_RETENTION,
    "max_compaction_lag_ms": NO_LIMIT,
    "max_message_bytes": 1_048_588,
    "message_downconversion_enable": True,
    "message_format_version": "3.0-IV1",
    "message_timestamp_type": CREATE_TIME,
    "message_timestamp_before_max_ms": NO_LIMIT,
    "message_timestamp_after_max_ms": NO_LIMIT,
    "message_timestamp_difference_max_ms": NO_LIMIT,
    "min_cleanable_dirty_ratio": 0.5,
    "min_compaction_lag_ms": 0,
    "min_insync_replicas": 1,
    "preallocate": False,
    "remote_log_copy_disable": False,
    "remote_storage_enable": False,
    "retention_bytes": -1,
    "retention_ms": 604_800_000,
    "segment_bytes": 1_073_741_824,
    "segment_index_bytes": 10_485_760,
    "segment_jitter_ms": 0,
    "segment_ms": 604_800_000,
    "unclean_leader_election_enable": False,
}
_TRUE_FALSE = {"true": True, "false": False}


class LogConfig:
    """Settings of one log. Immutable: changes make a new object, for `Log.update_config`.

    Attributes are the keys of `DEFAULTS`; `compact` and `delete` are derived from `cleanup_policy`.
    `has_remote_storage`: the broker has tiered storage, so records below the local log start may be
    in remote storage. `copies_to_remote`: segments leave the disk for remote storage, so
    `local_limit_ms` and `local_limit_bytes` are those of local retention; otherwise they are those
    of retention.
    `max_segment_ms` is the age at which an append rolls the active segment: `segment.ms`, or
    `max.compaction.lag.ms` of a compacted log if that is less, because the active segment is never
    compacted (Kafka: `LogConfig.maxSegmentMs`). `record_magic` is that of `message.format.version`,
    or the current one of a tiered log, whose remote segments are found by leader epochs.
    """

    __slots__ = (
        *DEFAULTS,
        "compact",
        "copies_to_remote",
        "delete",
        "local_limit_bytes",
        "local_limit_ms",
        "max_segment_ms",
        "record_magic",
        "values",
    )

    cleanup_policy: tuple[str, ...]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    has_remote_storage: bool
    index_interval_bytes: int
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_downconversion_enable: bool
    message_format_version: str
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    message_timestamp_difference_max_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    compact: bool
    copies_to_remote: bool
    delete: bool
    local_limit_bytes: int
    local_limit_ms: int
    max_segment_ms: int
    record_magic: int
    values: Mapping[str, object]

    def __init__(self, **settings: object) -> None:
        unknown = settings.keys() - DEFAULTS.keys()
        if unknown:
            raise ValueError(f"unknown log settings: {', '.join(sorted(unknown))}")
        values = {**DEFAULTS, **settings}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "values", values)
        magic = 2 if self.remote_storage_enable else _magic_of(self.message_format_version)
        object.__setattr__(self, "record_magic", magic)
        object.__setattr__(self, "compact", COMPACT in self.cleanup_policy)
        object.__setattr__(self, "delete", DELETE in self.cleanup_policy)
        lag_ms = self.max_compaction_lag_ms if self.compact else NO_LIMIT
        object.__setattr__(self, "max_segment_ms", min(self.segment_ms, lag_ms))
        _use_old_timestamp_limit(self)
        copies = (
            self.remote_storage_enable and not self.remote_log_copy_disable and not self.compact
        )
        object.__setattr__(self, "copies_to_remote", copies)
        for unit in ("ms", "bytes"):
            limit = values[f"local_retention_{unit}"] if copies else SAME_AS_RETENTION
            if limit == SAME_AS_RETENTION:
                limit = values[f"retention_{unit}"]
            object.__setattr__(self, f"local_limit_{unit}", limit)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"LogConfig is immutable, cannot set {name}; use replace()")

    def __repr__(self) -> str:
        changed = (f"{k}={v!r}" for k, v in self.values.items() if v != DEFAULTS[k])
        return f"LogConfig({', '.join(changed)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogConfig) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(self.values.values()))

    def replace(self, **settings: object) -> LogConfig:
        """A copy with these settings changed."""
        return LogConfig(**{**self.values, **settings})

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], base: LogConfig | None = None
    ) -> LogConfig:
        """Kafka's topic settings (`segment.bytes` and so on) on top of `base`.

        Ignores names that are no settings of a log: the broker has validated them. Raises
        ValueError, with the name of the setting, for a value of the wrong type.
        """
        values = dict(base.values) if base is not None else dict(DEFAULTS)
        for name, text in properties.items():
            attribute = name.replace(".", "_")
            if attribute in DEFAULTS:
                values[attribute] = _parse(name, text.strip(), DEFAULTS[attribute])
        return cls(**values)


def _magic_of(version: str) -> int:
    """The format of records that a version of Kafka introduced or kept."""
    if version.startswith(("0.8", "0.9")):
        return 0
    return 1 if version.startswith("0.10") else 2


def _parse(name: str, text: str, like: object) -> object:
    try:
        if isinstance(like, bool):
            return _TRUE_FALSE[text.lower()]
        if isinstance(like, int):
            return int(text)
        if isinstance(like, float):
            return float(text)
        if isinstance(like, tuple):
            return tuple(item.strip() for item in text.split(",") if item.strip())
    except (ValueError, KeyError):
        raise ValueError(f"invalid value {text!r} for {name}") from None
    return text


def _use_old_timestamp_limit(config: LogConfig) -> None:
    """`message.timestamp.difference.max.ms` is the default of both newer limits."""
    limit = config.message_timestamp_difference_max_ms
    if limit != NO_LIMIT:
        for name in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
            if config.values[name] == NO_LIMIT:
                object.__setattr__(config, name, limit)
