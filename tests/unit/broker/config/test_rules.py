"""All errors of the settings at once, each with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import (
    ConfigError,
    ConfigErrors,
    UnknownSetting,
    located,
    names_in,
    raise_all,
)
from ottla.broker.config.properties_file import Property
from ottla.broker.config.rules import PROTECTING, validate
from ottla.broker.server.settings import group_settings


def errors_of(path: Path | None, *overrides: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        BrokerConfig.load(None if path is None else str(path), overrides, environment)
    return [str(error) for error in raised.value.errors]


def test_rules_and_values_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("replica.fetch.wait.max.ms=40000\nnum.partitions=many\n")
    found = errors_of(path, "super.users=alice", OTTLA_BROKER_ID="-7")
    assert [line.partition(" ")[0] for line in found] == [
        f"{path}:2:",
        "--override:",
        "environment",
    ]
    assert "'alice' is not a principal" in found[1]
    assert "broker.id -7 must lie between" in found[2]


def test_a_rule_about_a_value_that_is_wrong_says_nothing() -> None:
    found = errors_of(
        None,
        "replica.socket.timeout.ms=soon",
        "replica.fetch.wait.max.ms=60000",
        "log.dirs=",
        "log.dir=",
    )
    assert found == [
        "--override: Invalid value soon for configuration replica.socket.timeout.ms: expected a "
        "whole number (int)",
        "--override: log.dirs is empty.",
    ]


def test_one_error_stays_one() -> None:
    config = BrokerConfig()
    validate(config)
    config.given["num.partitons"] = "1"
    with pytest.raises(UnknownSetting, match=r"^unknown setting num.partitons\."):
        validate(config)
    raise_all([])
    same = [ConfigError("a"), ConfigError("a")]
    with pytest.raises(ConfigError, match=r"^a$"):
        raise_all(same)
    assert str(ConfigErrors([ConfigError("a"), ConfigError("b")])) == (
        "2 settings are wrong:\n  a\n  b"
    )


def test_the_place_is_that_of_the_first_setting_that_was_given() -> None:
    error = UnknownSetting("log.roll.ms is above log.roll.hours.")
    assert names_in(error) == ["log.roll.ms", "log.roll.hours"]
    given = {"log.roll.hours": Property("log.roll.hours", "1", "file:3")}
    found = located(error, given)
    assert (type(found), str(found)) == (UnknownSetting, f"file:3: {error}")
    assert located(error, {}) is error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.client.auth", "requird"),
        ("max.connections", "many"),
        ("connections.max.reauth.ms", "soon"),
        ("plain.connections.max.reauth.ms", "soon"),
        ("sasl.server.max.receive.size", "-"),
    ],
)
def test_a_value_for_one_listener_is_checked(name: str, value: str) -> None:
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", f"listener.name.plaintext.{name}": value}
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(given)
    assert str(caught.value).startswith(f"listener.name.plaintext.{name}: ")
    assert value in str(caught.value)


UNIFORM = "org.apache.kafka.coordinator.group.assignor.UniformAssignor"
RANGE = "org.apache.kafka.coordinator.group.assignor.RangeAssignor"


def test_defaults_are_kafkas() -> None:
    """Of Kafka 4 for the group protocols, with ZooKeeper and without."""
    for given in ({}, {"zookeeper.connect": "z:2181"}):
        config = BrokerConfig(given)
        settings = group_settings(config, lambda group_id: {})
        assert settings.group_coordinator_rebalance_protocols == {"classic", "consumer", "share"}
        assert config.default_text("group.consumer.migration.policy") == "bidirectional"
    one = BrokerConfig({"group.coordinator.rebalance.protocols": "classic"})
    assert not group_settings(one, lambda group_id: {}).has_consumer_groups
    assert settings.group_consumer_assignors == ("uniform", "range")
    assert settings.group_consumer_heartbeat_interval_ms == 5_000
    assert settings.group_consumer_session_timeout_ms == 45_000
    assert settings.group_consumer_max_size == 2**31 - 1
    assert settings.group_consumer_migration_policy == "bidirectional"


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
        ("group.consumer.assignors", "", "group.consumer.assignors is empty"),
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


ENABLED = {"remote.log.storage.system.enable": "true"}
STORAGE = "remote.log.storage.manager.class.name"
METADATA = "remote.log.metadata.manager.class.name"


@pytest.mark.parametrize("name", ["io.aiven.kafka.tieredstorage.RemoteStorageManager", "aiven"])
def test_the_class_of_the_plugin_and_its_short_name(name: str) -> None:
    BrokerConfig({**ENABLED, STORAGE: name})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, rf"{STORAGE} is not set\. Set it to io\.aiven.* or to its short name aiven"),
        ({STORAGE: "com.example.Store"}, r"com\.example\.Store: Java classes cannot be loaded"),
        ({STORAGE: "aiven", METADATA: "com.example.Metadata"}, "Drop the setting"),
    ],
)
def test_other_classes_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig({**ENABLED, **settings})
    BrokerConfig(settings)  # without effect


def test_the_listener_of_the_metadata_must_be_there() -> None:
    settings = {STORAGE: "aiven", "remote.log.metadata.manager.listener.name": "INTERNAL"}
    words = "there is no listener INTERNAL; listeners names PLAINTEXT"
    with pytest.raises(ConfigError, match=words):
        BrokerConfig({**ENABLED, **settings})
    BrokerConfig(settings)  # without effect
    BrokerConfig(
        {
            **ENABLED,
            **settings,
            "listeners": "INTERNAL://:9092",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        }
    )


def test_the_rules_hold_for_dynamic_settings_too() -> None:
    """One check for both ways: what a start refuses, a merged configuration is refused for."""
    config = BrokerConfig({"listeners": "PLAINTEXT://:9092"})
    validate(config.with_dynamic({"log.cleaner.threads": "2"}, {"max.connections": "5"}))
    for cluster, broker, words in (
        ({"log.retention.ms": "0"}, {}, "log.retention.ms"),
        ({}, {"log.roll.ms": "0"}, "log.roll.ms"),
        ({}, {"max.connections.per.ip.overrides": "127.0.0.1"}, "127.0.0.1"),
        ({"max.connections": "0"}, {}, "max.connections=0 would refuse"),
        ({}, {"listeners": ""}, "listeners is empty"),
    ):
        with pytest.raises(ConfigError, match=words):
            validate(config.with_dynamic(cluster, broker))


@pytest.mark.parametrize("name", sorted(PROTECTING))
@pytest.mark.parametrize("text", ["", "  "])
def test_what_protects_is_not_empty(name: str, text: str) -> None:
    """A template that left it empty would open the broker."""
    with pytest.raises(ConfigError, match=f"{re.escape(name)} is empty, which protects nothing"):
        BrokerConfig({name: text})
    if name.startswith("ssl."):
        full = f"listener.name.plaintext.{name}"
        with pytest.raises(ConfigError, match=f"{re.escape(full)} is empty"):
            BrokerConfig({full: text, "listeners": "PLAINTEXT://:1"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max.connections": "0"}, "max.connections=0 would refuse every connection"),
        ({"max.connection.creation.rate": "0"}, "would refuse every connection"),
        ({"listener.name.plaintext.max.connections": "0"}, "would refuse every connection"),
        ({"max.connections.per.ip": "0"}, "can be set to zero only if"),
        ({"num.replica.fetchers": "0"}, "at least 1"),
        ({"log.cleaner.threads": "0"}, "log.cleaner.threads must be at least 1"),
    ],
)
def test_a_file_that_would_lock_everybody_out(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig({"listeners": "PLAINTEXT://:1", **given})


def test_local_retention_counts_where_there_is_tiered_storage() -> None:
    given = {"log.retention.ms": "1000", "log.local.retention.ms": "2000"}
    BrokerConfig(given)
    with pytest.raises(ConfigError, match=r"must not be more than log\.retention\.ms"):
        BrokerConfig({**ENABLED, STORAGE: "aiven", **given})
    with pytest.raises(ConfigError, match="must not be -1"):
        BrokerConfig({**ENABLED, STORAGE: "aiven", "log.local.retention.ms": "-1"})
