"""AlterConfigs (33) and IncrementalAlterConfigs (44): dynamic configuration.

AlterConfigs, versions 0 to 2, replaces the configuration of a resource. IncrementalAlterConfigs,
versions 0 and 1, sets, deletes, appends to and subtracts from single settings (KIP-339), and
changes log levels (KIP-412). Each resource has a row in the response. Changes are written to the
znode tree, with a notification upon which every broker loads them; any broker handles the requests.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.config.definitions import Setting, split_list, topic_settings
from ottla.broker.config.dynamic_rules import NoSecretStored, check_change
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import find_broker_setting
from ottla.broker.config.policies import ConfigAlteration
from ottla.broker.config.resource_rules import (
    InvalidTopicValue,
    check_group_config,
    group_settings,
    validate_topic_config,
)
from ottla.broker.handlers.admin.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    check_broker_id,
)
from ottla.broker.metrics.telemetry.manager import SETTINGS as CLIENT_METRICS_SETTINGS
from ottla.broker.metrics.telemetry.manager import parse_subscription
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import RESOURCE, Items, weigh_configs
from ottla.broker.security.audit.security_log import AUDIT_LOGGER
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import entity_path
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import alter_configs, incremental_alter_configs
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Turn

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.dynamic_config import DynamicConfig

logger = logging.getLogger("ottla.config")

SET, DELETE, APPEND, SUBTRACT = range(4)

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


# Loggers of this broker by those of Kafka and what is below them; the longest names first.
_OF_KAFKA = (
    ("kafka.controller", "ottla.controller"),
    ("state.change.logger", "ottla.controller and ottla.replication"),
    ("kafka.coordinator.group", "ottla.groups"),
    ("kafka.coordinator.transaction", "ottla.transactions"),
    ("kafka.coordinator", "ottla.groups and ottla.transactions"),
    ("kafka.cluster", "ottla.replication"),
    ("kafka.server.ReplicaManager", "ottla.replication"),
    ("kafka.server.ReplicaFetcherThread", "ottla.replication"),
    ("kafka.server.KafkaApis", "ottla.requests"),
    ("kafka.server", "ottla.broker, ottla.requests and ottla.replication"),
    ("kafka.log", "ottla.storage"),
    ("kafka.network", "ottla.net and ottla.requests"),
    ("kafka.request.logger", "ottla.requests"),
    ("kafka.security", "ottla.security"),
    ("kafka.zookeeper", "ottla.zookeeper"),
    ("kafka.zk", "ottla.znodes and ottla.zookeeper"),
    ("kafka", "ottla"),
    ("org.apache.zookeeper", "ottla.zookeeper"),
    ("org.apache.kafka.common.network", "ottla.net"),
    ("org.apache.kafka.common.security", "ottla.security"),
    ("org.apache.kafka.coordinator.group", "ottla.groups"),
    ("org.apache.kafka.storage", "ottla.storage"),
    ("org.apache.kafka.server.log.remote", "ottla.remote"),
    ("org.apache", "ottla"),
)

# From the settings of a resource to those after a request.
_Change = Callable[[dict[str, str]], dict[str, str]]


class Resource(Protocol):
    """A resource of either request."""

    resource_type: int
    resource_name: str


class Change(Protocol):
    """One setting of either request."""

    name: str
    value: str | None


class ConfigAlterer:
    """Validates changes and writes them."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        dynamic_config: DynamicConfig,
        metadata: MetadataCache,
        admit_change: Callable[[ConfigAlteration], None] = lambda change: None,
        validate_listeners: Callable[[BrokerConfig, list[str]], None] = lambda config, names: None,
        check_share_groups: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`admit_change` raises KafkaError when a policy rejects the change of a topic's or a
        broker's settings.

        `validate_listeners` raises ConfigError when changed settings make no usable listeners:
        their TLS contexts and their ports.

        `check_share_groups` raises KafkaError where a broker of the cluster has no share groups: it
        does not know the settings of groups. It is None where this broker has none.
        """
        self._admit_change = admit_change
        self._check_share_groups = check_share_groups
        self._validate_listeners = validate_listeners
        self._broker_id = broker_id
        self._config = config
        self._dynamic_config = dynamic_config
        self._metadata = metadata

    async def alter(
        self, context: RequestContext, request: alter_configs.AlterConfigsRequest
    ) -> alter_configs.AlterConfigsResponse:
        response = alter_configs.AlterConfigsResponse()
        duplicates = _duplicates(request.resources)
        for resource in request.resources:
            code, message = ErrorCode.NONE, None
            try:
                _check_changes(resource, duplicates, resource.configs, ())
                if resource.resource_type == BROKER_LOGGER:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"Unknown resource type {resource.resource_type}",
                    )
                wanted = {each.name: each.value or "" for each in resource.configs}
                change = partial(_replaced, wanted)
                await self._alter(resource, wanted, change, request.validate_only)
            except Exception as error:
                code, message = error_code(error), error_message(error)
            response.responses.append(
                alter_configs.AlterConfigsResourceResponse(
                    code, message, resource.resource_type, resource.resource_name
                )
            )
        return response

    async def alter_incrementally(
        self,
        context: RequestContext,
        request: incremental_alter_configs.IncrementalAlterConfigsRequest,
    ) -> incremental_alter_configs.IncrementalAlterConfigsResponse:
        response = incremental_alter_configs.IncrementalAlterConfigsResponse()
        duplicates = _duplicates(request.resources)
        for resource in request.resources:
            code, message = ErrorCode.NONE, None
            try:
                deletions = [
                    each.name for each in resource.configs if each.config_operation == DELETE
                ]
                _check_changes(resource, duplicates, resource.configs, deletions)
                if resource.resource_type == BROKER_LOGGER:
                    self._alter_loggers(resource, request.validate_only)
                else:
                    given = {
                        each.name: None if each.config_operation == DELETE else each.value
                        for each in resource.configs
                    }
                    change = partial(_changed, resource)
                    await self._alter(resource, given, change, request.validate_only)
            except Exception as error:
                code, message = error_code(error), error_message(error)
            response.responses.append(
                incremental_alter_configs.AlterConfigsResourceResponse(
                    code, message, resource.resource_type, resource.resource_name
                )
            )
        return response

    async def _alter(
        self,
        resource: Resource,
        given: Mapping[str, str | None],
        change: _Change,
        validate_only: bool,
    ) -> None:
        """Validates and writes what `change` makes of the settings of a resource; `given` are those
        that the request names.

        It runs again if they change meanwhile: of two requests at the same time none is lost.
        """
        self._check_resource(resource)
        path = _entity_path(resource)

        async def changed(stored: dict[str, str]) -> dict[str, str]:
            is_broker = resource.resource_type == BROKER
            secrets = self._config.secrets  # the settings as they were set
            present = secrets.decode_all(stored) if is_broker else stored
            wanted = change(dict(present))
            # A list of a hundred thousand items takes some ten milliseconds here, and there.
            await Turn().pause()
            valid = await self._validated(resource, wanted, present)
            self._ask_policy(resource, given)
            await Turn().pause()
            return secrets.encode_all(valid) if is_broker else valid

        if validate_only:
            await changed(await self._dynamic_config.read(path))
        else:
            await self._dynamic_config.change(path, changed)

    def _check_resource(self, resource: Resource) -> None:
        kind, name = resource.resource_type, resource.resource_name
        if kind == TOPIC:
            if not name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."
                )
            if name not in self._metadata.snapshot.topics:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
        elif kind == BROKER:
            if name:
                check_broker_id(name, self._broker_id, "")
        elif kind == GROUP and self._check_share_groups is not None:
            if not name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."
                )
        else:
            message = "AlterConfigs is only supported for topics and brokers, but resource type is"
            if kind == CLIENT_METRICS and self._config.ottla_metrics_address:
                parse_subscription(name, {})
                return
            if kind == CLIENT_METRICS:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{message} CLIENT_METRICS")
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")

    def _ask_policy(self, resource: Resource, given: Mapping[str, str | None]) -> None:
        kind = {TOPIC: "TOPIC", BROKER: "BROKER"}.get(resource.resource_type)
        if kind is not None:
            self._admit_change(ConfigAlteration(kind, resource.resource_name, given))

    async def _validated(
        self, resource: Resource, wanted: dict[str, str], present: Mapping[str, str]
    ) -> dict[str, str]:
        if resource.resource_type == TOPIC:
            self._validate_topic(resource.resource_name, wanted)
        elif resource.resource_type == CLIENT_METRICS:
            parse_subscription(resource.resource_name, wanted)
        elif resource.resource_type == GROUP:
            await self._validate_group(wanted)
        else:
            self._validate_broker(wanted, present, per_broker=bool(resource.resource_name))
        return wanted

    def _validate_topic(self, name: str, wanted: Mapping[str, str]) -> None:
        try:
            validate_topic_config(
                wanted,
                self._config.topic_defaults(),
                has_remote_storage=self._config.remote_log_storage_system_enable,
            )
        except InvalidTopicValue as error:
            # The words with which Kafka begins; tools look for them.
            raise KafkaError(
                error.code,
                f"Invalid config value for resource ConfigResource(type=TOPIC, name='{name}'): "
                f"{error.message}",
            ) from None

    async def _validate_group(self, wanted: Mapping[str, str]) -> None:
        def limit_of(name: str) -> int:
            return int(self._config.effective_text(name) or 0)

        try:
            check_group_config(wanted, limit_of)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        assert self._check_share_groups is not None
        await self._check_share_groups()

    def _validate_broker(
        self, wanted: Mapping[str, str], present: Mapping[str, str], *, per_broker: bool
    ) -> None:
        """INVALID_REQUEST, as in Kafka, for broker settings that cannot change at run time, or
        with which the broker would not start."""
        try:
            after = check_change(self._config, present, wanted, per_broker=per_broker)
            if per_broker:
                changed = [
                    name for name in {**wanted, **present} if wanted.get(name) != present.get(name)
                ]
                self._validate_listeners(after, changed)
        except NoSecretStored as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _alter_loggers(
        self, resource: incremental_alter_configs.AlterConfigsResource, validate_only: bool
    ) -> None:
        name = resource.resource_name
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        check_broker_id(name, self._broker_id, "")
        levels: list[tuple[str, int]] = []
        for change in resource.configs:
            if change.name == AUDIT_LOGGER and not _keeps_audit(change):
                # Its line about this change would be the first that is missing.
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{AUDIT_LOGGER} is the security log, which is not switched off while the "
                    "broker runs: set INFO or a lower level.",
                )
            if change.config_operation == DELETE:
                if change.name == "root":
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        "Removing the log level of the root logger is not allowed",
                    )
                levels.append((change.name, logging.NOTSET))
            elif change.config_operation != SET:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Only SET and DELETE are supported for the level of a logger.",
                )
            elif (change.value or "").upper() not in _LEVELS:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{change.value} is not a log level; use one of {', '.join(_LEVELS)}.",
                )
            else:
                levels.append((change.name, _LEVELS[(change.value or "").upper()]))
            known = change.name == "root" or change.name in logging.root.manager.loggerDict
            if not known:
                raise KafkaError(ErrorCode.INVALID_CONFIG, _unknown_logger(change.name))
        if not validate_only:
            for logger_name, level in levels:
                logging.getLogger(None if logger_name == "root" else logger_name).setLevel(level)


def _unknown_logger(name: str) -> str:
    """Kafka's message, with the logger of this broker where `name` is one of Kafka's."""
    message = f"Logger {name} does not exist!"
    equivalents = (ours for kafka, ours in _OF_KAFKA if f"{name}.".startswith(f"{kafka}."))
    ours = next(equivalents, None)
    if ours is None:
        return message
    return f"{message} It is a logger of Kafka: use {ours} here."


def _keeps_audit(change: incremental_alter_configs.AlterableConfig) -> bool:
    level = _LEVELS.get((change.value or "").upper(), logging.NOTSET)
    return change.config_operation == SET and level <= logging.INFO


def _duplicates(resources: Sequence[Resource]) -> set[tuple[int, str]]:
    counted = Counter((each.resource_type, each.resource_name) for each in resources)
    return {key for key, count in counted.items() if count > 1}


def _check_changes(
    resource: Resource,
    duplicates: set[tuple[int, str]],
    changes: Sequence[Change],
    deletions: Sequence[str],
) -> None:
    if (resource.resource_type, resource.resource_name) in duplicates:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [each.name for each in changes if each.value is None and each.name not in deletions]
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )


def _entity_path(resource: Resource) -> str:
    if resource.resource_type == TOPIC:
        return f"{znodes.ENTITY_TOPICS}/{resource.resource_name}"
    if resource.resource_type == CLIENT_METRICS:
        return entity_path(znodes.ENTITY_CLIENT_METRICS, resource.resource_name)
    if resource.resource_type == GROUP:
        return entity_path(znodes.ENTITY_GROUPS, resource.resource_name)
    return f"{znodes.ENTITY_BROKERS}/{resource.resource_name or znodes.DEFAULT_ENTITY}"


def _replaced(wanted: dict[str, str], _: dict[str, str]) -> dict[str, str]:
    return wanted


def _changed(
    resource: incremental_alter_configs.AlterConfigsResource, wanted: dict[str, str]
) -> dict[str, str]:
    """The configuration of the resource after the operations."""
    for change in resource.configs:
        operation, name = change.config_operation, change.name
        if operation == DELETE:
            wanted.pop(name, None)
            continue
        value = change.value or ""
        if operation == SET:
            wanted[name] = value
            continue
        if operation not in (APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
        setting = _list_setting(resource.resource_type, name, operation)
        present = split_list(wanted.get(name, setting.default or ""))
        given = split_list(value)
        known = set(present if operation == APPEND else given)
        if operation == APPEND:
            present.extend(item for item in dict.fromkeys(given) if item not in known)
        else:
            present = [item for item in present if item not in known]
        wanted[name] = ",".join(present)
    return wanted


def _list_setting(kind: int, name: str, operation: int) -> Setting:
    if kind == CLIENT_METRICS:
        setting = CLIENT_METRICS_SETTINGS.get(name)
    elif kind == GROUP:
        setting = group_settings().get(name)
    else:
        setting = topic_settings().get(name) if kind == TOPIC else find_broker_setting(name)
    if setting is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if setting.type != "list":
        verb = "append" if operation == APPEND else "subtract"
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Config value {verb} is not allowed for config key: {name}",
        )
    return setting


def _alter_configs_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for resource in request.resources:
        response.responses.append(
            alter_configs.AlterConfigsResourceResponse(
                code, message, resource.resource_type, resource.resource_name
            )
        )


def _incremental_alter_configs_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    for resource in request.resources:
        response.responses.append(
            incremental_alter_configs.AlterConfigsResourceResponse(
                code, message, resource.resource_type, resource.resource_name
            )
        )


ROUTES = (
    ApiRoute(
        ApiKey.ALTER_CONFIGS,
        ConfigAlterer.alter,
        check="alter_configs",
        errors=_alter_configs_errors,
        items=(Items("resources", "responses", key=RESOURCE, weigh=weigh_configs),),
    ),
    ApiRoute(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ConfigAlterer.alter_incrementally,
        check="alter_configs",
        errors=_incremental_alter_configs_errors,
        items=(Items("resources", "responses", key=RESOURCE, weigh=weigh_configs),),
    ),
)
