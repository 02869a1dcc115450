from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.definitions import broker_settings
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.resource_rules import (
    check_group_config,
    duration_ms,
    group_settings,
    is_offset_reset,
    replica_settings,
    validate_topic_config,
)
from ottla.protocol.errors import ErrorCode, KafkaError

DEFAULTS = BrokerConfig().topic_defaults()


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"retention.ms": "-1", "cleanup.policy": "compact,delete"},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
        {"compression.type": "zstd", "compression.zstd.level": "19"},
    ],
)
def test_what_may_be(overrides: dict[str, str]) -> None:
    validate_topic_config(overrides, DEFAULTS)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"retention.mss": "1"}, r"Unknown topic config name: retention\.mss \(did you mean"),
        ({"no.such": "1"}, r"Unknown topic config name: no\.such$"),
        ({"retention.ms": "soon"}, r"retention\.ms"),
        ({"segment.bytes": "1"}, r"segment\.bytes"),
        ({"cleanup.policy": "keep"}, r"cleanup\.policy"),
        ({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, r"\(6\) > max.*\(5\)"),
        ({"remote.storage.enable": "true"}, "Tiered Storage"),
    ],
)
def test_what_may_not_be(overrides: dict[str, str], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        validate_topic_config(overrides, DEFAULTS)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


REMOTE = {"remote.storage.enable": "true"}
ZOOKEEPER = "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable`"


@pytest.mark.parametrize(
    "overrides",
    [
        {"local.retention.ms": "1000", "local.retention.bytes": "1000"},
        {"retention.ms": "10", "local.retention.ms": "10"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.bytes": "5", "local.retention.bytes": "-2"},
    ],
)
def test_remote_storage(overrides: dict[str, str]) -> None:
    validate_topic_config({**REMOTE, **overrides}, DEFAULTS, has_remote_storage=True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"cleanup.policy": "compact"}, "Remote log storage is unsupported for the compacted topi"),
        ({"cleanup.policy": "delete,compact"}, "unsupported for the compacted topics"),
        (
            {"retention.ms": "10", "local.retention.ms": "11"},
            r"Invalid value 11 for configuration local\.retention\.ms: Value must not be more than "
            "retention.ms property value: 10$",
        ),
        (
            {"retention.bytes": "10", "local.retention.bytes": "-1"},
            r"Invalid value -1 for configuration local\.retention\.bytes: Value must not be -1 as "
            "retention.bytes value is set as 10.$",
        ),
        ({"remote.log.copy.disable": "true"}, ZOOKEEPER),
        ({"remote.log.delete.on.disable": "true", "remote.storage.enable": "false"}, ZOOKEEPER),
    ],
)
def test_what_remote_storage_excludes(overrides: dict[str, str], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        validate_topic_config({**REMOTE, **overrides}, DEFAULTS, has_remote_storage=True)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


BROKER = BrokerConfig({})


def check(**settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    check_group_config(named, lambda name: int(BROKER.effective_text(name) or 0))


def test_defaults_are_valid() -> None:
    check(**{name.replace(".", "_"): each.default or "" for name, each in group_settings().items()})


@pytest.mark.parametrize(
    "value", ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2H", "by_duration:pt1m"]
)
def test_offset_resets(value: str) -> None:
    assert is_offset_reset(value)
    check(share_auto_offset_reset=value)


# The words are those of Kafka 4.3.1, from `GroupConfig.validate`.
@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("x", "1", "Unknown group config name: x"),
        ("errors_deadletterqueue_topic_name", "dead", "Unknown group config name: errors."),
        ("share_session_timeout_ms", "1", "greater than or equal to group.share.min.session"),
        ("share_session_timeout_ms", "100000", "less than or equal to group.share.max.session"),
        ("share_session_timeout_ms", "", "share.session.timeout.ms"),
        ("share_heartbeat_interval_ms", "0", "share.heartbeat.interval.ms"),
        ("share_heartbeat_interval_ms", "x", "share.heartbeat.interval.ms"),
        ("share_heartbeat_interval_ms", "100000", "equal to group.share.max.heartbeat"),
        ("share_record_lock_duration_ms", "500", "share.record.lock.duration.ms"),
        ("share_record_lock_duration_ms", "14000", "equal to group.share.min.record.lock"),
        ("share_record_lock_duration_ms", "70000", "equal to group.share.max.record.lock"),
        ("share_auto_offset_reset", "middle", "either 'earliest', 'latest' or of the format"),
        ("share_auto_offset_reset", "EARLIEST", "either 'earliest', 'latest' or of the format"),
        ("share_auto_offset_reset", "by_duration:P-1D", "either 'earliest'"),
        ("share_auto_offset_reset", "by_duration:1h", "either 'earliest'"),
        ("share_isolation_level", "READ_COMMITTED", "share.isolation.level"),
        ("share_delivery_count_limit", "1", "share.delivery.count.limit"),
        ("share_delivery_count_limit", "11", "equal to group.share.max.delivery.count.limit"),
        ("share_partition_max_record_locks", "50", "share.partition.max.record.locks"),
        ("share_partition_max_record_locks", "11000", "equal to group.share.max.partition"),
        ("share_renew_acknowledge_enable", "x", "share.renew.acknowledge.enable"),
        ("consumer_session_timeout_ms", "1000", "equal to group.consumer.min.session"),
        ("consumer_heartbeat_interval_ms", "100000", "equal to group.consumer.max.heartbeat"),
    ],
)
def test_what_is_refused(name: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(**{name: value})
    assert problem in str(refused.value)


def test_a_session_is_longer_than_the_heartbeat_interval() -> None:
    wanted = {"share.session.timeout.ms": "5000", "share.heartbeat.interval.ms": "5000"}
    limits = {"min": 1, "max": 100_000}
    with pytest.raises(ConfigError, match="must be greater than share"):
        check_group_config(wanted, lambda name: limits[name.split(".")[2]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("P1D", 86_400_000), ("PT0.5S", 500), ("P1DT2H", 93_600_000), ("pt1m", 60_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "1H", "PT1", "PTH", "P1H", "PT1D"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        duration_ms(text)


def test_the_limits_are_settings_of_the_broker() -> None:
    wanted = {"share.delivery.count.limit": "20", "share.partition.max.record.locks": "9000"}
    limits = {
        "group.share.max.delivery.count.limit": 25,
        "group.share.max.partition.max.record.locks": 10_000,
    }
    check_group_config(wanted, lambda name: limits.get(name, 1))


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 2), (5, 3, 2)])
def test_a_small_cluster_can_create_every_topic(brokers: int, replicas: int, in_sync: int) -> None:
    found = replica_settings(brokers)
    of_topics = {each for each in broker_settings() if each.endswith(".replication.factor")}
    assert {name: found.pop(name) for name in of_topics} == dict.fromkeys(of_topics, replicas)
    assert set(found.values()) == {in_sync}
