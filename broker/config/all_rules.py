"""The rules between the settings of a broker; what breaks them is reported together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.broker.config.authorizer_settings import check_authorizer
from ottla.broker.config.definitions import parse_value
from ottla.broker.config.errors import ConfigError, UnknownSetting, each_error, raise_all
from ottla.broker.config.groups import GroupConfig, check_codecs, check_groups
from ottla.broker.config.listener_settings import (
    PREFIX,
    check_listener_settings,
    listener_setting,
)
from ottla.broker.config.listeners import Endpoint, check_advertised
from ottla.broker.config.number_rules import Numbers, check_numbers
from ottla.broker.config.policies import PolicySettings, check_policies
from ottla.broker.config.python_classes import check_quota_callback
from ottla.broker.config.remote_log import (
    MetadataListener,
    RemoteLogNames,
    check_metadata_listener,
    check_remote_log,
)
from ottla.broker.config.sasl import SaslConfig, check_sasl
from ottla.broker.config.sources import is_known, unknown_setting
from ottla.broker.config.unsupported import check_supported

Rule = Callable[[], object]


class CheckedConfig(
    SaslConfig, Numbers, GroupConfig, RemoteLogNames, MetadataListener, PolicySettings, Protocol
):
    """What the rules read of the broker's settings (`BrokerConfig`)."""

    given: dict[str, str]
    authorizer_class_name: str
    super_users: str
    client_quota_callback_class: str | None
    inter_broker_listener_name: str | None

    def listener_endpoints(self) -> list[Endpoint]: ...

    def advertised_endpoints(self) -> list[Endpoint]: ...

    def log_directories(self) -> Sequence[str]: ...

    def connections_per_ip_overrides(self) -> dict[str, int]: ...


def check_rules(config: CheckedConfig) -> None:
    """Raises ConfigError, or ConfigErrors when several rules are broken."""
    if config.given.get("process.roles"):
        raise ConfigError(
            "process.roles requests KRaft, which this broker does not speak: drop it, and set "
            "zookeeper.connect for a cluster or nothing for a single broker."
        )
    errors: list[ConfigError] = [
        UnknownSetting(unknown_setting(name)) for name in config.given if not is_known(name)
    ]
    rules: list[Rule] = [
        lambda: check_supported(config.given),
        lambda: check_authorizer(config.authorizer_class_name, config.super_users),
        lambda: check_policies(config),
        lambda: check_quota_callback(config.client_quota_callback_class),
        lambda: _check_directories(config),
        config.connections_per_ip_overrides,
        lambda: check_numbers(config),
        lambda: check_groups(config),
        lambda: check_codecs(config),
        lambda: check_remote_log(config),
    ]
    try:
        rules += _listener_rules(config, config.listener_endpoints())
    except ConfigError as error:  # the rules between listeners would only repeat it
        errors.append(error)
    for rule in rules:
        try:
            rule()
        except ConfigError as error:
            errors += each_error(error)
    raise_all(errors)


def _check_directories(config: CheckedConfig) -> None:
    if not config.log_directories():
        raise ConfigError("log.dirs names no directory.")


def _listener_rules(config: CheckedConfig, listeners: list[Endpoint]) -> list[Rule]:
    names = [each.listener_name for each in listeners]

    def check_own() -> None:
        if not listeners:
            raise ConfigError("listeners names no listener.")
        if config.inter_broker_listener_name and "security.inter.broker.protocol" in config.given:
            raise ConfigError(
                "Set only one of inter.broker.listener.name and security.inter.broker.protocol."
            )
        check_advertised(listeners, config.advertised_endpoints(), config.inter_broker_listener())

    def of_listener(name: str) -> Rule:
        return lambda: _check_listener_setting(name, config.given[name], names)

    own = [of_listener(name) for name in config.given if name.startswith(PREFIX)]
    return [
        check_own,
        *own,
        lambda: check_sasl(config, listeners),
        lambda: check_metadata_listener(config, names),
    ]


def _check_listener_setting(name: str, text: str, listeners: Sequence[str]) -> None:
    """Name and value of one."""
    check_listener_settings([name], listeners)
    try:
        parse_value(listener_setting(name).setting, text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
