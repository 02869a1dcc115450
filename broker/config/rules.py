"""The rules between the settings of a broker, checked together on the effective values.

`validate` applies to any `BrokerConfig`: the one that a broker starts with, and one with other
dynamic settings (`BrokerConfig.with_dynamic`). Each rule is a function of the configuration that
raises ConfigError; `problems` collects the errors of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.config.console import check_console
from ottla.broker.config.definitions import Value, parse_value
from ottla.broker.config.errors import ConfigError, UnknownSetting, each_error, raise_all
from ottla.broker.config.listeners import (
    PREFIX,
    Endpoint,
    base_name,
    check_advertised,
    check_listener_settings,
    listener_setting,
)
from ottla.broker.config.policies import check_policies
from ottla.broker.config.python_classes import check_quota_callback
from ottla.broker.config.resource_rules import topics_to_create
from ottla.broker.config.sasl import check_sasl
from ottla.broker.config.sources import is_known, unknown_setting
from ottla.broker.config.unsupported import check_supported
from ottla.broker.config.workers import check_workers
from ottla.protocol.records.compression import NONE, compress
from ottla.protocol.records.errors import UnsupportedCompressionError

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig


Rule = Callable[["BrokerConfig"], object]


def validate(config: BrokerConfig) -> None:
    """Raise ConfigError, or ConfigErrors when several rules are broken."""
    raise_all(problems(config))


def problems(config: BrokerConfig) -> list[ConfigError]:
    """The errors of all rules; a rule between settings whose values are wrong adds none."""
    texts = config.texts()
    if texts.get("process.roles"):
        return [
            ConfigError(
                "process.roles requests KRaft, which this broker does not speak: drop it, and set "
                "zookeeper.connect for a cluster or nothing for a single broker."
            )
        ]
    errors: list[ConfigError] = [
        UnknownSetting(unknown_setting(name)) for name in config.given if not is_known(name)
    ]
    rules: list[Rule] = [*_RULES]
    try:
        rules += _listener_rules(texts, config.listener_endpoints())
    except ConfigError as error:  # the rules between listeners would only repeat it
        errors.append(error)
    for rule in rules:
        try:
            rule(config)
        except ConfigError as error:
            errors += each_error(error)
    return errors


def _listener_rules(texts: dict[str, str], listeners: list[Endpoint]) -> Iterator[Rule]:
    names = [each.listener_name for each in listeners]

    def check_own(config: BrokerConfig) -> None:
        if not listeners:
            raise ConfigError("listeners is empty.")
        if config.inter_broker_listener_name and "security.inter.broker.protocol" in texts:
            raise ConfigError(
                "Set only one of inter.broker.listener.name and security.inter.broker.protocol."
            )
        check_advertised(listeners, config.advertised_endpoints(), config.inter_broker_listener())

    yield check_own
    for name, text in texts.items():
        if name.startswith(PREFIX):
            yield partial(_check_listener_setting, name, text, names)
    yield lambda config: check_limits(config, names)
    yield lambda config: check_sasl(config, listeners)
    yield lambda config: check_metadata_listener(config, names)


def _check_listener_setting(
    name: str, text: str, listeners: Sequence[str], config: BrokerConfig
) -> None:
    if name in config.given:  # at run time the listener may come later
        check_listener_settings([name], listeners)
    try:
        parse_value(listener_setting(name).setting, text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


_MIN_DEDUPE_BYTES = 1 << 20
"""The memory of one cleaner thread: with less it compacts nothing."""


def check_numbers(config: BrokerConfig) -> None:
    """Raise ConfigError for numbers that contradict each other, as KafkaConfig does."""
    lowest = -1 if config.broker_id_generation_enable else 0
    highest = config.reserved_broker_max_id if config.broker_id_generation_enable else 2**31 - 1
    if not lowest <= config.broker_id <= highest:
        raise ConfigError(
            f"broker.id {config.broker_id} must lie between {lowest} and {highest}; ids above "
            "reserved.broker.max.id are the generated ones."
        )
    if config.replica_fetch_wait_max_ms > config.replica_socket_timeout_ms:
        raise ConfigError("replica.fetch.wait.max.ms is above replica.socket.timeout.ms.")
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError("replica.fetch.wait.max.ms is above replica.lag.time.max.ms.")
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise ConfigError("queued.max.request.bytes is below socket.request.max.bytes.")
    if config.effective_log_retention_ms() == 0:
        raise ConfigError("log.retention.ms must be -1 (for ever) or at least 1.")
    if int(config.topic_default_text("segment.ms") or 1) < 1:
        raise ConfigError("log.roll.ms must be at least 1.")
    if int(config.topic_default_text("segment.jitter.ms") or 0) < 0:
        raise ConfigError("log.roll.jitter.ms must be at least 0.")
    if config.log_cleaner_threads < 1:
        raise ConfigError(
            "log.cleaner.threads must be at least 1; log.cleaner.enable=false ends compaction."
        )
    threads = config.log_cleaner_threads
    if config.log_cleaner_dedupe_buffer_size // threads <= _MIN_DEDUPE_BYTES:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size must be above {_MIN_DEDUPE_BYTES} bytes for each of "
            "log.cleaner.threads."
        )
    if 0 <= config.connections_max_idle_ms <= config.connection_failed_authentication_delay_ms:
        raise ConfigError(
            "connection.failed.authentication.delay.ms is not below connections.max.idle.ms."
        )


def check_limits(config: BrokerConfig, listeners: Sequence[str]) -> None:
    """Raise ConfigError for limits of connections that would lock out all clients, the one that
    could raise them included."""
    names = ("max.connections", "max.connection.creation.rate")
    limits: dict[str, Value] = {name: config.value(name) for name in names}
    for listener in listeners:
        for name in names:
            limits[f"{PREFIX}{listener.lower()}.{name}"] = config.listener_limit(listener, name)
    for name, value in limits.items():
        if value == 0:
            raise ConfigError(f"{name}=0 would refuse every connection: set it to at least 1.")
    overrides = config.connections_per_ip_overrides()
    if config.max_connections_per_ip == 0 and not overrides:
        raise ConfigError(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
            "has the addresses that may connect."
        )


def check_local_retention(config: BrokerConfig) -> None:
    """Raise ConfigError for local retention that is longer than the whole (KIP-405), as Kafka's
    `DynamicLogConfig`."""
    for unit in ("ms", "bytes"):
        local = int(config.topic_default_text(f"local.retention.{unit}") or -2)
        whole = int(config.topic_default_text(f"retention.{unit}") or -1)
        name = f"log.local.retention.{unit}"
        if whole != -1 and local == -1:
            raise ConfigError(
                f"Invalid value -1 for configuration {name}: Value must not be -1 as "
                f"log.retention.{unit} value is set as {whole}."
            )
        if whole != -1 and local > whole:
            raise ConfigError(
                f"Invalid value {local} for configuration {name}: Value must not be more than "
                f"log.retention.{unit} property value: {whole}"
            )


def _check_local_retention(config: BrokerConfig) -> None:
    if config.remote_log_storage_system_enable:
        check_local_retention(config)


_ASSIGNORS = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def assignor_names(classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the assignors that are listed, the preferred one first.

    As in Kafka 4, each is listed by its name or its Java class.
    """
    names = []
    for item in classes:
        name = item if item in _ASSIGNORS.values() else _ASSIGNORS.get(item)
        if name is None:
            known = ", ".join((*_ASSIGNORS.values(), *_ASSIGNORS))
            raise ConfigError(f"group.consumer.assignors: there is no {item!r} here, but {known}.")
        names.append(name)
    if not names:
        raise ConfigError("group.consumer.assignors is empty.")
    return tuple(dict.fromkeys(names))


def rebalance_protocols(listed: Sequence[str]) -> frozenset[str]:
    """The group protocols that are enabled, in small letters."""
    return frozenset(item.lower() for item in listed)


def check_groups(config: BrokerConfig) -> None:
    """Raise ConfigError for settings of the group coordinator that contradict each other."""
    protocols = rebalance_protocols(config.group_coordinator_rebalance_protocols)
    if "classic" not in protocols:
        raise ConfigError(
            "group.coordinator.rebalance.protocols has to have `classic` in it: that protocol "
            "cannot be disabled."
        )
    unknown = sorted(protocols - {"classic", "consumer", "share"})
    if unknown:
        config.warn(
            f"group.coordinator.rebalance.protocols: {', '.join(unknown)} has no effect; this "
            "broker has `classic`, `consumer` and `share`."
        )
    assignor_names(config.group_consumer_assignors)
    for what in ("heartbeat.interval.ms", "session.timeout.ms"):
        lowest = _number(config, f"group.consumer.min.{what}")
        value = _number(config, f"group.consumer.{what}")
        highest = _number(config, f"group.consumer.max.{what}")
        if not lowest <= value <= highest:
            raise ConfigError(
                f"group.consumer.{what} {value} must lie between group.consumer.min.{what} "
                f"{lowest} and group.consumer.max.{what} {highest}."
            )


def check_codecs(config: BrokerConfig) -> None:
    """Raise ConfigError when the codec of an internal topic is not installed."""
    for name, codec in (
        ("offsets.topic.compression.codec", config.offsets_topic_compression_codec),
        (
            "share.coordinator.state.topic.compression.codec",
            config.share_coordinator_state_topic_compression_codec,
        ),
    ):
        if codec == NONE:
            continue
        try:
            compress(codec, b"")
        except UnsupportedCompressionError as error:
            raise ConfigError(f"{name}: {error}.") from None


def _number(config: BrokerConfig, name: str) -> int:
    value = config.value(name)
    assert isinstance(value, int)
    return value


ACL_AUTHORIZERS = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
"""Values of `authorizer.class.name` that mean this one."""


def parse_super_users(text: str) -> frozenset[str]:
    """The setting `super.users`: "User:alice;User:CN=broker,O=us". Raises ValueError."""
    users = [part.strip() for part in text.split(";") if part.strip()]
    for user in users:
        if ":" not in user:
            raise ValueError(f"super.users: {user!r} is not a principal, write it as User:{user}")
    return frozenset(users)


def check_authorizer(config: BrokerConfig) -> None:
    """Raise ConfigError for an authorizer that this broker does not have, or wrong principals."""
    class_name = config.authorizer_class_name
    if class_name not in ("", *ACL_AUTHORIZERS):
        raise ConfigError(
            f"authorizer.class.name is {class_name}, which this broker cannot load; it has "
            f"Kafka's {ACL_AUTHORIZERS[0]} built in."
        )
    try:
        parse_super_users(config.super_users)
    except ValueError as error:
        raise ConfigError(str(error)) from None


#: The class of Aiven's plugin tiered-storage-for-apache-kafka, and its name here.
_STORAGE_MANAGERS = ("io.aiven.kafka.tieredstorage.RemoteStorageManager", "aiven")
_METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)


def check_remote_log(config: BrokerConfig) -> None:
    """Raise ConfigError for classes of tiered storage (KIP-405) that this broker does not have."""
    if config.remote_log_storage_system_enable:
        check_remote_log_classes(
            config.remote_log_storage_manager_class_name,
            config.remote_log_metadata_manager_class_name,
        )


def check_remote_log_classes(storage_manager: str | None, metadata_manager: str) -> None:
    """Raise ConfigError unless the classes are those whose formats this broker reads."""
    if storage_manager not in _STORAGE_MANAGERS:
        problem = (
            "is not set"
            if storage_manager is None
            else f"{storage_manager}: Java classes cannot be loaded here"
        )
        raise ConfigError(
            f"remote.log.storage.manager.class.name {problem}. Set it to {_STORAGE_MANAGERS[0]}, "
            f"whose settings and objects this broker has, or to its short name aiven."
        )
    if metadata_manager != _METADATA_MANAGER:
        raise ConfigError(
            f"remote.log.metadata.manager.class.name {metadata_manager}: Java classes cannot be "
            "loaded here. "
            "Drop the setting: this broker keeps the metadata in __remote_log_metadata, as "
            f"{_METADATA_MANAGER} does."
        )


def check_metadata_listener(config: BrokerConfig, listeners: Sequence[str]) -> None:
    """Raise ConfigError, as in Kafka, for a listener that the broker does not have.

    Ottla uses the inter-broker listener, whatever is set.
    """
    name = config.remote_log_metadata_manager_listener_name
    if config.remote_log_storage_system_enable and name and name.upper() not in listeners:
        raise ConfigError(
            f"remote.log.metadata.manager.listener.name: there is no listener {name}; listeners "
            f"names {', '.join(sorted(listeners))}."
        )


#: Without a value each of these protects nothing, as if it were not there: text that a template
#: left empty would open the broker.
PROTECTING = frozenset(
    (
        *("alter.config.policy.class.name", "authorizer.class.name"),
        *("client.quota.callback.class", "create.topic.policy.class.name"),
        *("ottla.console.token", "ottla.ssl.crl.location"),
        *("ssl.truststore.certificates", "ssl.truststore.location"),
    )
)


def check_not_empty(config: BrokerConfig) -> None:
    """Raise ConfigError for a setting that protects and is set to nothing."""
    raise_all(
        [
            ConfigError(
                f"{name} is empty, which protects nothing: give it a value, or remove the setting."
            )
            for name, text in config.texts().items()
            if not text.strip() and base_name(name) in PROTECTING
        ]
    )


def _check_directories(config: BrokerConfig) -> None:
    if not config.log_directories():
        raise ConfigError("log.dirs is empty.")


_RULES: tuple[Rule, ...] = (
    lambda config: check_supported(config.texts()),
    check_not_empty,
    check_authorizer,
    check_policies,
    lambda config: check_quota_callback(config.client_quota_callback_class),
    _check_directories,
    lambda config: config.connections_per_ip_overrides(),
    lambda config: topics_to_create(config.ottla_create_topics),
    check_numbers,
    _check_local_retention,
    check_groups,
    check_codecs,
    check_remote_log,
    check_workers,
    check_console,
)
