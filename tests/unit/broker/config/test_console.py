"""The settings of the console, which a start checks before it writes anything."""

from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.console import parse_principal
from ottla.broker.config.errors import ConfigError

ENABLED = {"ottla.console.enable": "true"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ottla.console.allow.remote", "true", "other machines need a token"),
        ("ottla.console.token", "short", "use 16 characters or more"),
        ("ottla.console.principal", "alice", "'alice' is not a principal"),
        ("ottla.console.schema.registry.url", "registry:8081", "is not a URL such as"),
        ("ottla.console.schema.registry.url", "http://registry:x", "is not a URL such as"),
        ("ottla.console.schema.registry.url", "http://", "is not a URL such as"),
    ],
)
def test_settings_that_the_console_cannot_use(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .*{words}"):
        BrokerConfig(ENABLED | {name: value})
    BrokerConfig({name: value})  # the console is off


def test_a_console_for_other_machines() -> None:
    token = {"ottla.console.token": "sixteen-or-more-characters"}
    BrokerConfig(ENABLED | token | {"ottla.console.allow.remote": "true"})


def test_principals() -> None:
    assert parse_principal("User:a:b") == ("User", "a:b")
    for text in ("alice", ":alice", "User:"):
        with pytest.raises(ConfigError, match="is not a principal"):
            parse_principal(text)
