from __future__ import annotations

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.definitions import broker_settings
from ottla.broker.config.unsupported import REFUSED, without_effect


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_protect_less_than_configured_is_refused(name: str) -> None:
    value = "true" if broker_settings()[name].type == "boolean" else "com.acme.Own"
    with pytest.raises(ConfigError, match=rf"^{name}: "):
        BrokerConfig({name: value})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_class_that_kafka_uses_by_default_is_accepted(name: str) -> None:
    default = broker_settings()[name].default
    BrokerConfig({name: default or ""})


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.plaintext.principal.builder.class",
        "listener.name.plaintext.ssl.engine.factory.class",
        "listener.name.plaintext.plain.sasl.server.callback.handler.class",
    ],
)
def test_a_listener_of_its_own(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: Java classes cannot be loaded"):
        BrokerConfig({name: "com.acme.Own"})


def test_what_only_lacks_a_comfort_is_named_in_one_warning() -> None:
    config = BrokerConfig(
        {
            "metric.reporters": "com.acme.Reporter",
            "ssl.secure.random.implementation": "SHA1PRNG",
            "num.network.threads": broker_settings()["num.network.threads"].default or "",
            "sasl.jaas.config": "com.acme.Login required;",
            "num.partitions": "3",
        }
    )
    assert config.warnings == [
        "Without effect in this broker: metric.reporters, sasl.jaas.config, "
        "ssl.secure.random.implementation (docs/configuration.md names the settings that are used)"
    ]


@pytest.mark.parametrize(
    ("given", "switch"),
    [
        (
            {"super.users": "User:anna", "allow.everyone.if.no.acl.found": "false"},
            {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
        ),
        (
            {"zookeeper.ssl.protocol": "TLSv1.3", "zookeeper.ssl.truststore.location": "/x"},
            {"zookeeper.ssl.client.enable": "true"},
        ),
    ],
)
def test_what_another_setting_would_switch_on(
    given: dict[str, str], switch: dict[str, str]
) -> None:
    (warning,) = BrokerConfig(given).warnings
    assert all(name in warning for name in given)
    assert BrokerConfig(given | switch).warnings == []


def test_the_tables_do_not_overlap() -> None:
    assert without_effect() <= set(broker_settings())
    assert not without_effect() & set(REFUSED)
