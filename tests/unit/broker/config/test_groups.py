"""The settings of the newer group protocol, and what they may be together."""

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.server.coordinators import group_settings

UNIFORM = "org.apache.kafka.coordinator.group.assignor.UniformAssignor"
RANGE = "org.apache.kafka.coordinator.group.assignor.RangeAssignor"


def test_defaults_are_kafkas() -> None:
    settings = group_settings(BrokerConfig({}), lambda group_id: {})
    assert not settings.has_consumer_groups
    assert settings.group_consumer_assignors == ("uniform", "range")
    assert settings.group_consumer_heartbeat_interval_ms == 5_000
    assert settings.group_consumer_session_timeout_ms == 45_000
    assert settings.group_consumer_max_size == 2**31 - 1
    assert settings.group_consumer_migration_policy == "disabled"


def test_the_codec_of_the_offsets_topic() -> None:
    for given, codec in (({}, 0), ({"offsets.topic.compression.codec": "1"}, 1)):
        settings = group_settings(BrokerConfig(given), lambda group_id: {})
        assert settings.offsets_topic_compression_codec == codec


def test_what_is_given() -> None:
    settings = group_settings(
        BrokerConfig(
            {
                "group.coordinator.rebalance.protocols": "classic, consumer",
                "group.consumer.assignors": f"{RANGE},{UNIFORM}",
                "group.consumer.migration.policy": "Bidirectional",
                "group.consumer.session.timeout.ms": "50000",
            }
        ),
        {"g": {"consumer.session.timeout.ms": "55000"}}.__getitem__,
    )
    assert settings.has_consumer_groups
    assert settings.group_consumer_assignors == ("range", "uniform")
    assert settings.group_consumer_migration_policy == "bidirectional"
    assert settings.group_consumer_session_timeout_ms == 50_000
    assert settings.consumer_session_timeout_ms("g") == 55_000
    assert settings.consumer_heartbeat_interval_ms("g") == 5_000


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("group.coordinator.rebalance.protocols", "consumer", "cannot be disabled"),
        ("group.coordinator.rebalance.protocols", "classic,newest", "newest"),
        ("group.consumer.assignors", "com.example.Mine", "com.example.Mine"),
        ("group.consumer.assignors", "", "no assignor"),
        ("group.consumer.migration.policy", "sometimes", "sometimes"),
        ("group.consumer.heartbeat.interval.ms", "100", "group.consumer.min.heartbeat.interval.ms"),
        ("group.consumer.session.timeout.ms", "90000", "group.consumer.max.session.timeout.ms"),
        ("group.consumer.min.session.timeout.ms", "70000", "must lie between"),
        ("offsets.topic.compression.codec", "9", "offsets.topic.compression.codec: .* codec 9"),
        ("offsets.topic.compression.codec", "-1", "codec -1 is not one of"),
        ("share.coordinator.state.topic.compression.codec", "5", "codec"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig({name: value})
