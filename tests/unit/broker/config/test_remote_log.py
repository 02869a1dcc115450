from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError

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
