from __future__ import annotations

import pytest

from ottla.broker.config.definitions import (
    PER_BROKER,
    READ_ONLY,
    broker_settings,
    dynamic_only_settings,
    format_value,
    near_matches,
    parse_value,
    topic_settings,
)
from ottla.broker.config.errors import ConfigError


def test_every_default_satisfies_its_own_rule() -> None:
    optional = {"", None}
    for setting in (*broker_settings().values(), *topic_settings().values()):
        if setting.default in optional:
            continue
        parse_value(setting, setting.default)


def test_the_tables_have_all_settings_of_kafka_3_9() -> None:
    outside_the_table = {"allow.everyone.if.no.acl.found", "super.users", "config.providers"}
    ours = {name for name in broker_settings() if name.startswith("ottla.")}
    later = {name for name in broker_settings() if name.startswith("share.coordinator.")}
    later |= {
        f"group.share.{name}"
        for name in ("max.delivery.count.limit", "max.partition.max.record.locks")
        + ("min.delivery.count.limit", "min.partition.max.record.locks", "max.share.sessions")
    }
    assert len(broker_settings().keys() - ours - outside_the_table - later) == 328
    assert len(topic_settings()) == 36
    for setting in topic_settings().values():
        assert setting.broker_synonym is None or setting.broker_synonym in broker_settings()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("num.partitions", " 3 ", 3),
        ("num.partitions", "+3", 3),
        ("auto.create.topics.enable", "TRUE", True),
        ("log.cleanup.policy", "compact , delete", ["compact", "delete"]),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("compression.gzip.level", "-1", -1),
        ("inter.broker.protocol.version", "3.9-IV0", "3.9-IV0"),
        ("inter.broker.protocol.version", "2.8", "2.8"),
        ("ottla.log.level", "warn", "warn"),
        ("group.consumer.migration.policy", "upgrade", "upgrade"),
    ],
)
def test_good_values(name: str, text: str, expected: object) -> None:
    assert parse_value(broker_settings()[name], text) == expected


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("num.partitions", "x", "whole number"),
        ("num.partitions", "1_000", "whole number"),
        ("num.partitions", "", "whole number"),
        ("num.partitions", "0", "at least 1"),
        ("num.partitions", "2147483648", "lies between"),
        ("offsets.topic.replication.factor", "40000", "lies between"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("compression.type", "zip", "must be one of"),
        ("log.cleanup.policy", "delete,keep", "must be one of"),
        ("compression.gzip.level", "10", "no more than 9"),
        ("inter.broker.protocol.version", "3", "no Kafka version"),
        ("inter.broker.protocol.version", "4.0", "no Kafka version"),
        ("ottla.log.level", "loud", "must be one of"),
        ("log.cleaner.min.cleanable.ratio", "much", "a number"),
    ],
)
def test_bad_values_are_refused_with_the_reason(name: str, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        parse_value(broker_settings()[name], text)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("*", True),
        ("0:1,1:2", True),
        ("", True),
        ("0", False),
        ("a:1", False),
        ("0:" + "1" * 5000, False),
        ("\N{SUPERSCRIPT TWO}:1", False),
    ],
)
def test_throttled_replicas(text: str, good: bool) -> None:
    setting = topic_settings()["leader.replication.throttled.replicas"]
    if good:
        parse_value(setting, text)
    else:
        with pytest.raises(ConfigError):
            parse_value(setting, text)


def test_a_secret_is_not_shown_when_it_is_wrong() -> None:
    setting = broker_settings()["ssl.keystore.password"]
    assert setting.sensitive
    assert parse_value(setting, " kept as it is ") == " kept as it is "


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (["a", "b"], "a,b"),
        (None, None),
        (5, "5"),
        (0.5, "0.5"),
        ("x", "x"),
        (0.0, "0.0"),
        (1e7, "1.0E7"),
        (-1.25e-5, "-1.25E-5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_formatting(value: object, text: str | None) -> None:
    assert format_value(value) == text  # type: ignore[arg-type]  # the parameters are all values


def test_update_modes() -> None:
    table = broker_settings()
    assert table["log.dirs"].mode == READ_ONLY
    assert table["advertised.listeners"].mode == PER_BROKER
    assert "leader.replication.throttled.rate" in dynamic_only_settings()


def test_near_matches() -> None:
    assert near_matches("num.partitons", broker_settings())[0] == "num.partitions"
    assert near_matches("xyzzy", broker_settings()) == []


def test_a_long_value_is_cut_in_the_error() -> None:
    setting = topic_settings()["leader.replication.throttled.replicas"]
    with pytest.raises(ConfigError) as caught:
        parse_value(setting, ",".join(f"{index}:1" for index in range(100_000)) + ",x")
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).endswith("such as 0:1001,1:1002")
