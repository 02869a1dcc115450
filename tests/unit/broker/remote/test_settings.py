from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.remote.settings import RemoteLogSettings

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
