"""Settings of a log."""

import pytest

from ottla.storage.config import NO_LIMIT, LogConfig


def test_defaults_are_kafkas() -> None:
    config = LogConfig()
    assert config.segment_bytes == 1 << 30
    assert config.retention_ms == 7 * 24 * 3600 * 1000
    assert config.cleanup_policy == ("delete",)
    assert config.delete
    assert not config.compact


def test_properties_are_typed_and_put_on_top() -> None:
    base = LogConfig(retention_ms=5)
    config = LogConfig.from_properties(
        {
            "segment.bytes": "1000",
            "cleanup.policy": "compact, delete",
            "min.cleanable.dirty.ratio": "0.25",
            "preallocate": "true",
            "compression.type": "zstd",
            "follower.replication.throttled.replicas": "*",
        },
        base,
    )
    assert config.segment_bytes == 1000
    assert config.compact
    assert config.delete
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.preallocate is True
    assert config.compression_type == "zstd"
    assert config.retention_ms == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment.bytes", "many"), ("preallocate", "maybe"), ("min.cleanable.dirty.ratio", "x")],
)
def test_a_value_of_the_wrong_type_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        LogConfig.from_properties({name: value})


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="segment_byte"):
        LogConfig(segment_byte=1)


def test_settings_do_not_change_in_place() -> None:
    config = LogConfig()
    with pytest.raises(AttributeError, match="segment_bytes"):
        config.segment_bytes = 1
    changed = config.replace(segment_bytes=1)
    assert (config.segment_bytes, changed.segment_bytes) == (1 << 30, 1)
    assert changed != config
    assert changed == LogConfig(segment_bytes=1)
    assert hash(changed) == hash(LogConfig(segment_bytes=1))
    assert repr(changed) == "LogConfig(segment_bytes=1)"


def test_the_old_timestamp_limit_stands_for_both() -> None:
    config = LogConfig(message_timestamp_difference_max_ms=7)
    assert config.message_timestamp_before_max_ms == 7
    assert config.message_timestamp_after_max_ms == 7
    config = LogConfig(message_timestamp_difference_max_ms=7, message_timestamp_after_max_ms=9)
    assert config.message_timestamp_before_max_ms == 7
    assert config.message_timestamp_after_max_ms == 9
    assert LogConfig().message_timestamp_before_max_ms == NO_LIMIT
