from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError, Endpoint
from ottla.broker.config.definitions import broker_settings


def test_without_anything_it_is_one_broker_on_this_machine() -> None:
    config = BrokerConfig.load()
    assert config.listener_endpoints() == [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]
    assert config.advertised_endpoints() == config.listener_endpoints()
    assert config.log_directories() == ["ottla-data"]
    assert config.embedded
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.num_partitions == 1


def test_with_zookeeper_the_defaults_are_kafkas() -> None:
    config = BrokerConfig({"zookeeper.connect": "zk:2181"})
    assert not config.embedded
    assert config.group_initial_rebalance_delay_ms == 3000
    assert config.zookeeper_timeout_ms() == 18_000


def test_every_setting_is_an_attribute() -> None:
    config = BrokerConfig()
    for name in broker_settings():
        config.value(name)


def test_annotated_attributes_are_settings() -> None:
    names = {name.replace(".", "_") for name in broker_settings()}
    assert set(BrokerConfig.__annotations__) <= names


def test_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("\nnum.io.threads=none\n")
    with pytest.raises(ConfigError, match=r"server\.properties:2: Invalid value none"):
        BrokerConfig.load(str(path))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"process.roles": "broker"}, "KRaft"),
        ({"log.dirs": ","}, "log.dirs is empty"),
        ({"listeners": ""}, "listeners is empty"),
        ({"broker.id": "5000"}, "must lie between"),
        ({"broker.id": "-1", "broker.id.generation.enable": "false"}, "must lie between"),
        ({"broker.id": "1", "node.id": "2"}, "drop one"),
        ({"replica.fetch.wait.max.ms": "60000"}, "replica.socket.timeout.ms"),
        ({"queued.max.request.bytes": "10"}, "socket.request.max.bytes"),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be at least 1"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be at least 0"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "for each of log.cleaner.threads"),
        (
            {"log.cleaner.dedupe.buffer.size": "4000000", "log.cleaner.threads": "4"},
            "for each of log.cleaner.threads",
        ),
        (
            {"connections.max.idle.ms": "500", "connection.failed.authentication.delay.ms": "500"},
            "connection.failed.authentication.delay.ms is not below connections.max.idle.ms",
        ),
        ({"max.connections.per.ip.overrides": "x"}, "address:number"),
        ({"max.connections.per.ip.overrides": ":5"}, "address:number"),
        ({"max.connections.per.ip.overrides": "a b:5"}, "address:number"),
        ({"max.connections.per.ip.overrides": "PLAINTEXT://:0"}, "address:number"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:2147483648"}, "address:number"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "Set only one",
        ),
    ],
)
def test_contradictions(given: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        BrokerConfig(given)


def test_node_id_is_broker_id() -> None:
    config = BrokerConfig({"node.id": "7"})
    assert config.broker_id == 7


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_retention_is_the_finest_unit_given(given: dict[str, str], expected: int) -> None:
    config = BrokerConfig(given)
    assert config.effective_log_retention_ms() == expected
    assert config.topic_default_text("retention.ms") == str(expected)


def test_defaults_of_topics_come_from_the_broker() -> None:
    defaults = BrokerConfig({"log.segment.bytes": "1000", "log.roll.hours": "2"}).topic_defaults()
    assert defaults["segment.bytes"] == "1000"
    assert defaults["segment.ms"] == str(2 * 3_600_000)
    assert defaults["flush.ms"] == str((1 << 63) - 1)
    assert defaults["cleanup.policy"] == "delete"


def test_dynamic_layers_win_over_what_was_given() -> None:
    config = BrokerConfig({"log.segment.bytes": "1000"})
    assert config.update_dynamic({"log.segment.bytes": "2000"}, {}) == ["log.segment.bytes"]
    assert config.topic_default_text("segment.bytes") == "2000"
    assert config.update_dynamic({"log.segment.bytes": "2000"}, {"log.segment.bytes": "3000"}) == [
        "log.segment.bytes"
    ]
    assert config.value("log.segment.bytes") == 3000
    assert config.update_dynamic({}, {}) == ["log.segment.bytes"]
    assert config.value("log.segment.bytes") == 1000


def test_a_dynamic_value_that_does_not_parse_is_left_out() -> None:
    config = BrokerConfig()
    assert config.update_dynamic({"log.segment.bytes": "many"}, {}) == []
    assert any("log.segment.bytes" in warning for warning in config.warnings)


def test_a_wildcard_is_advertised_as_unknown_host() -> None:
    config = BrokerConfig({"listeners": "PLAINTEXT://0.0.0.0:1"})
    assert config.advertised_endpoints() == [Endpoint("PLAINTEXT", "PLAINTEXT", "", 1)]


def test_settings_of_one_listener_win() -> None:
    config = BrokerConfig(
        {"ssl.keystore.type": "PEM", "listener.name.plaintext.ssl.keystore.type": "JKS"}
    )
    assert config.listener_text("PLAINTEXT", "ssl.keystore.type") == "JKS"
    assert config.listener_text("OTHER", "ssl.keystore.type") == "PEM"
