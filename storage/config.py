"""The settings of one log, typed and immutable. Names are Kafka's, with `_` for `.`."""

from __future__ import annotations

from collections.abc import Mapping

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
COMPACT = "compact"
DELETE = "delete"
NO_LIMIT = 0x7FFFFFFFFFFFFFFF

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
    "index_interval_bytes": 4096,
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
    """

    __slots__ = (*DEFAULTS, "compact", "delete", "values")

    cleanup_policy: tuple[str, ...]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
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
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    compact: bool
    delete: bool
    values: Mapping[str, object]

    def __init__(self, **settings: object) -> None:
        unknown = settings.keys() - DEFAULTS.keys()
        if unknown:
            raise ValueError(f"unknown log settings: {', '.join(sorted(unknown))}")
        values = {**DEFAULTS, **settings}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "compact", COMPACT in self.cleanup_policy)
        object.__setattr__(self, "delete", DELETE in self.cleanup_policy)
        _use_old_timestamp_limit(self)

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
