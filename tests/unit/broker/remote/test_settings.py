from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.remote.settings import RemoteLogMetadataSettings, RemoteLogSettings

METADATA = "remote.log.metadata.topic.num.partitions"


def test_the_defaults_are_those_of_kafka() -> None:
    assert RemoteLogSettings.parse(BrokerConfig()) == RemoteLogSettings()


def test_threads_default_to_the_pool_of_all_tasks() -> None:
    given = {
        "remote.log.manager.thread.pool.size": "3",
        "remote.log.manager.expiration.thread.pool.size": "2",
    }
    settings = RemoteLogSettings.parse(BrokerConfig(given))
    assert (settings.copier_threads, settings.expiration_threads) == (3, 2)


def test_settings_of_the_plugins_have_a_prefix() -> None:
    given = {
        "rsm.config.chunk.size": "1024",
        f"rlmm.config.{METADATA}": "7",
        "remote.log.metadata.manager.impl.prefix": "other.",
    }
    settings = RemoteLogSettings.parse(BrokerConfig(given))
    assert settings.store == {"chunk.size": "1024"}
    assert settings.metadata.topic_num_partitions == 50
    del given["remote.log.metadata.manager.impl.prefix"]
    assert RemoteLogSettings.parse(BrokerConfig(given)).metadata.topic_num_partitions == 7


def test_a_wrong_setting_of_the_metadata() -> None:
    with pytest.raises(ConfigError, match=METADATA):
        RemoteLogSettings.parse(BrokerConfig({f"rlmm.config.{METADATA}": "many"}))


def test_defaults_are_those_of_kafka() -> None:
    settings = RemoteLogMetadataSettings.parse({"unknown": "1"})
    assert settings == RemoteLogMetadataSettings(3, 50, -1, 120_000, 120_000, 100)


def test_every_setting_has_its_name() -> None:
    prefix = "remote.log.metadata."
    names = (
        *("topic.replication.factor", "topic.num.partitions", "topic.retention.ms"),
        *("consume.wait.ms", "initialization.retry.max.timeout.ms"),
        "initialization.retry.interval.ms",
    )
    values = {prefix + name: str(number) for number, name in enumerate(names, 1)}
    assert RemoteLogMetadataSettings.parse(values) == RemoteLogMetadataSettings(1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic.replication.factor", "0"),
        ("topic.num.partitions", "0"),
        ("topic.retention.ms", "0"),
        ("topic.retention.ms", "-2"),
        ("consume.wait.ms", "-1"),
        ("consume.wait.ms", "soon"),
    ],
)
def test_what_kafka_refuses_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"remote.log.metadata.{name}"):
        RemoteLogMetadataSettings.parse({f"remote.log.metadata.{name}": value})
