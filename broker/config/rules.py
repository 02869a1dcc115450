"""The rules between the settings of a broker; what breaks them is reported together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.broker.config.definitions import parse_value
from ottla.broker.config.errors import ConfigError, UnknownSetting, each_error, raise_all
from ottla.broker.config.listeners import (
    PREFIX,
    Endpoint,
    check_advertised,
    check_listener_settings,
    listener_setting,
)
from ottla.broker.config.policies import PolicySettings, check_policies
from ottla.broker.config.python_classes import check_quota_callback
from ottla.broker.config.sasl import SaslConfig, check_sasl
from ottla.broker.config.sources import is_known, unknown_setting
from ottla.broker.config.unsupported import check_supported
from ottla.protocol.records.compression import NONE, compress
from ottla.protocol.records.errors import UnsupportedCompressionError


class Numbers(Protocol):
    """The settings that are compared."""

    broker_id: int
    broker_id_generation_enable: bool
    connection_failed_authentication_delay_ms: int
    connections_max_idle_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_threads: int
    queued_max_request_bytes: int
    replica_fetch_wait_max_ms: int
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    reserved_broker_max_id: int
    socket_request_max_bytes: int

    def effective_log_retention_ms(self) -> int: ...

    def topic_default_text(self, name: str) -> str | None: ...


#: Those of them that change at run time.
CHANGING_NUMBERS = frozenset(
    (
        *("log.cleaner.dedupe.buffer.size", "log.cleaner.threads", "log.retention.ms"),
        *("log.roll.jitter.ms", "log.roll.ms"),
    )
)

_MIN_DEDUPE_BYTES = 1 << 20
"""Of a cleaner thread; with less it compacts nothing."""


def check_numbers(config: Numbers) -> None:
    """Raises ConfigError with the names of the settings that do not fit."""
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
    threads = max(1, config.log_cleaner_threads)
    if config.log_cleaner_dedupe_buffer_size // threads <= _MIN_DEDUPE_BYTES:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size must be above {_MIN_DEDUPE_BYTES} bytes for each of "
            "log.cleaner.threads."
        )
    if 0 <= config.connections_max_idle_ms <= config.connection_failed_authentication_delay_ms:
        raise ConfigError(
            "connection.failed.authentication.delay.ms is not below connections.max.idle.ms."
        )


_ASSIGNORS = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def assignor_names(classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the assignors that are listed by their Java classes, the preferred one first."""
    names = []
    for item in classes:
        name = _ASSIGNORS.get(item)
        if name is None:
            raise ConfigError(
                f"group.consumer.assignors: there is no {item!r} here, but {', '.join(_ASSIGNORS)}."
            )
        names.append(name)
    if not names:
        raise ConfigError("group.consumer.assignors names no assignor.")
    return tuple(dict.fromkeys(names))


def rebalance_protocols(listed: Sequence[str]) -> frozenset[str]:
    """The group protocols that are enabled, in small letters."""
    return frozenset(item.lower() for item in listed)


class GroupConfig(Protocol):
    """What the rules read of the broker's settings (`BrokerConfig`)."""

    group_coordinator_rebalance_protocols: list[str]
    group_consumer_assignors: list[str]
    offsets_topic_compression_codec: int
    share_coordinator_state_topic_compression_codec: int
    warnings: list[str]

    def value(self, name: str) -> object: ...


def check_groups(config: GroupConfig) -> None:
    """ConfigError when the settings do not go together."""
    protocols = rebalance_protocols(config.group_coordinator_rebalance_protocols)
    if "classic" not in protocols:
        raise ConfigError(
            "group.coordinator.rebalance.protocols has to have `classic` in it: that protocol "
            "cannot be disabled."
        )
    unknown = sorted(protocols - {"classic", "consumer", "share"})
    if unknown:
        config.warnings.append(
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


def check_codecs(config: GroupConfig) -> None:
    """ConfigError when batches of an internal topic cannot be compressed as the settings say."""
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


def _number(config: GroupConfig, name: str) -> int:
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
            raise ValueError(f"super.users: {user!r} is no principal, write it as User:{user}")
    return frozenset(users)


def check_authorizer(class_name: str, super_users: str) -> None:
    """ConfigError for an authorizer that this broker does not have, and for wrong principals."""
    if class_name not in ("", *ACL_AUTHORIZERS):
        raise ConfigError(
            f"authorizer.class.name is {class_name}, which this broker cannot load; it has "
            f"Kafka's {ACL_AUTHORIZERS[0]} built in."
        )
    try:
        parse_super_users(super_users)
    except ValueError as error:
        raise ConfigError(str(error)) from None


#: The class of Aiven's plugin tiered-storage-for-apache-kafka, and its name here.
_STORAGE_MANAGERS = ("io.aiven.kafka.tieredstorage.RemoteStorageManager", "aiven")
_METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)


class RemoteLogNames(Protocol):
    """What `check_remote_log` reads."""

    remote_log_metadata_manager_class_name: str
    remote_log_storage_manager_class_name: str | None
    remote_log_storage_system_enable: bool


class MetadataListener(Protocol):
    """What `check_metadata_listener` reads."""

    remote_log_metadata_manager_listener_name: str | None
    remote_log_storage_system_enable: bool


class RemoteLogConfig:
    """What tiered storage reads of the broker's settings; a part of `BrokerConfig`."""

    given: dict[str, str]
    remote_fetch_max_wait_ms: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_expiration_thread_pool_size: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_manager_task_interval_ms: int
    remote_log_manager_task_retry_backoff_max_ms: int
    remote_log_manager_task_retry_backoff_ms: int
    remote_log_manager_task_retry_jitter: float
    remote_log_manager_thread_pool_size: int
    remote_log_metadata_custom_metadata_max_bytes: int
    remote_log_metadata_manager_class_name: str
    remote_log_metadata_manager_impl_prefix: str
    remote_log_metadata_manager_listener_name: str | None
    remote_log_reader_max_pending_tasks: int
    remote_log_reader_threads: int
    remote_log_storage_manager_class_name: str | None
    remote_log_storage_manager_impl_prefix: str
    remote_log_storage_system_enable: bool


def check_remote_log(config: RemoteLogNames) -> None:
    """Raises ConfigError for a class that is not what this broker has, if tiered storage is on."""
    if not config.remote_log_storage_system_enable:
        return
    name = config.remote_log_storage_manager_class_name
    if name not in _STORAGE_MANAGERS:
        problem = "is not set" if name is None else f"{name}: Java classes cannot be loaded here"
        raise ConfigError(
            f"remote.log.storage.manager.class.name {problem}. Set it to {_STORAGE_MANAGERS[0]}, "
            f"whose settings and objects this broker has, or to its short name aiven."
        )
    name = config.remote_log_metadata_manager_class_name
    if name != _METADATA_MANAGER:
        raise ConfigError(
            f"remote.log.metadata.manager.class.name {name}: Java classes cannot be loaded here. "
            "Drop the setting: this broker keeps the metadata in __remote_log_metadata, as "
            f"{_METADATA_MANAGER} does."
        )


def check_metadata_listener(config: MetadataListener, listeners: Sequence[str]) -> None:
    """Raises ConfigError, as in Kafka, for a listener that the broker does not have. This one uses
    the inter-broker listener, whatever is set."""
    name = config.remote_log_metadata_manager_listener_name
    if config.remote_log_storage_system_enable and name and name.upper() not in listeners:
        raise ConfigError(
            f"remote.log.metadata.manager.listener.name: there is no listener {name}; listeners "
            f"names {', '.join(sorted(listeners))}."
        )


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
