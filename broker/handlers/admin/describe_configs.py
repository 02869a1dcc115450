"""DescribeConfigs (32), versions 0 to 4: settings with their values, sources and synonyms.

A topic has all topic settings; a broker all settings when the name is its id, and only the dynamic
cluster-wide ones when the name is empty; loggers have their levels. Version 1 added sources and
synonyms, 3 types and documentation. Secrets have no value. Mirrors Kafka's `ConfigHelper`.

Deviation from Kafka: a request for only the key `ottla.group.events` of a group returns the events
of the group, which `ottla groups events` shows; for only the key `ottla.group.shares` of a share
group, what this broker has of it; for only the key `ottla.broker.events`, `ottla.broker.state` or
`ottla.broker.remote` of a broker with an HTTP port, its newest log lines, its state, or its topics
in remote storage, as JSON.

Each resource may be requested again and again, with hundreds of rows each time: building them
pauses between rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.config.definitions import (
    READ_ONLY,
    Setting,
    broker_settings,
    format_value,
    parse_value,
    topic_settings,
)
from ottla.broker.config.documentation import broker_documentation, topic_documentation
from ottla.broker.config.listeners import (
    PREFIX,
    base_name,
    find_broker_setting,
    is_broker_setting,
)
from ottla.broker.config.resource_rules import group_settings
from ottla.broker.config.rules import rebalance_protocols
from ottla.broker.metrics.telemetry.manager import SETTINGS as CLIENT_METRICS_SETTINGS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import Items, weigh_keys
from ottla.controller.admin.topic_limits import name_problem
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ottla.protocol.primitives import MAX_STRING_LENGTH
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_in_turns

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.dynamic_config import DynamicConfig
    from ottla.protocol.steps import Steps

T = TypeVar("T")

# Resource types and sources as they are numbered on the wire.
TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
GROUP_EVENTS = "ottla.group.events"
GROUP_SHARES = "ottla.group.shares"
BROKER_EVENTS = "ottla.broker.events"
BROKER_STATE = "ottla.broker.state"
BROKER_REMOTE = "ottla.broker.remote"
FROM_TOPIC = 1
FROM_BROKER = 2
FROM_CLUSTER = 3
FROM_FILE = 4
FROM_DEFAULT = 5
FROM_LOGGER = 6
FROM_CLIENT_METRICS = 7
FROM_GROUP = 8

_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}

# By type of resource; loggers, groups and client metrics have no texts, as in Kafka.
_DOCUMENTATION = {TOPIC: topic_documentation, BROKER: broker_documentation}

# Of a broker id, which is an integer of 32 bits.
_MAX_DIGITS = 10

# Settings for one duration in several units; the first that is set has precedence.
_SAME = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)


def same_settings(name: str) -> tuple[str, ...]:
    """The names of a broker setting in several units or with a listener prefix, by precedence."""
    if name == "log.flush.scheduler.interval.ms":
        return (name,)
    for names in _SAME:
        if name in names:
            return names
    if name.startswith(PREFIX):
        base = base_name(name)
        return (name,) if base == name else (name, base)
    return (name,)


class ConfigDescriber:
    """Builds the rows of settings; CreateTopics uses it too."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        dynamic_config: DynamicConfig,
        metadata: MetadataCache,
        group_events: Callable[[str], str] | None = None,
    ) -> None:
        """`group_events`: the events of a group; KafkaError when this is not its coordinator."""
        self._broker_id = broker_id
        self._config = config
        self._dynamic_config = dynamic_config
        self._metadata = metadata
        #: What GROUP_EVENTS and GROUP_SHARES return, by key; the latter is set where this broker
        #: serves share groups.
        self.group_texts: dict[str, Callable[[str], str]] = {}
        if group_events is not None:
            self.group_texts[GROUP_EVENTS] = group_events
        #: What BROKER_EVENTS, BROKER_STATE and BROKER_REMOTE return; set when the HTTP port
        #: serves.
        self.broker_texts: dict[str, Callable[[], str]] = {}

    async def handle(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        topics = self._metadata.snapshot.topics
        names = [each.resource_name for each in request.resources if each.resource_type == TOPIC]
        known = [name for name in names if name in topics]
        overrides = await self._dynamic_config.read_topics(known) if known else {}
        return await run_in_turns(self._described(request, overrides))

    def _described(
        self, request: DescribeConfigsRequest, overrides: Mapping[str, Mapping[str, str]]
    ) -> Steps[DescribeConfigsResponse]:
        """Pauses between rows, which take 10 to 20 us: a setting that changes meanwhile is
        described as it was or as it is."""
        response = DescribeConfigsResponse()
        for resource in request.resources:
            response.results.append((yield from self._resource(resource, request, overrides)))
        return response

    def _resource(
        self,
        resource: DescribeConfigsResource,
        request: DescribeConfigsRequest,
        overrides: Mapping[str, Mapping[str, str]],
    ) -> Steps[DescribeConfigsResult]:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if resource.resource_type == GROUP and resource.configuration_keys in (
                [GROUP_EVENTS],
                [GROUP_SHARES],
            ):
                (key,) = resource.configuration_keys
                rows = self._text_of_group(resource.resource_name, key)
            elif resource.resource_type == BROKER and resource.configuration_keys in (
                [BROKER_EVENTS],
                [BROKER_STATE],
                [BROKER_REMOTE],
            ):
                (key,) = resource.configuration_keys
                rows = self._text_of(resource.resource_name, key)
            else:
                rows = yield from self._rows(
                    resource.resource_type, resource.resource_name, overrides
                )
        except Exception as error:
            result.error_code = error_code(error)
            result.error_message = error_message(error)
            return result
        wanted = set(resource.configuration_keys or ())
        configs = [row for row in rows if not wanted or row.name in wanted]
        too_long = next((row for row in configs if _is_too_long(row.value)), None)
        if too_long is not None:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = (
                f"The value of {too_long.name} has more than {MAX_STRING_LENGTH} bytes, which no "
                "response can carry: shorten it with SUBTRACT or remove it with DELETE, or name "
                "other settings in the request."
            )
            return result
        result.configs = configs
        if not request.include_synonyms:
            for row in result.configs:
                row.synonyms = []
        documentation = _DOCUMENTATION.get(resource.resource_type)
        if request.include_documentation and documentation is not None:
            for row in result.configs:
                row.documentation = documentation(row.name)
                yield
        return result

    def _rows(
        self, kind: int, name: str, overrides: Mapping[str, Mapping[str, str]]
    ) -> Steps[list[DescribeConfigsResourceResult]]:
        """The settings of one resource; KafkaError when it does not exist. `overrides`: the
        settings of topics in the znode tree."""
        if kind == TOPIC:
            problem = name_problem(name)
            if problem is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            if name not in overrides:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return (yield from self.topic_rows(overrides[name]))
        if kind == BROKER:
            if not name:
                names = sorted(self._config.cluster_dynamic)
                return (yield from _rows_of(names, self._cluster_row))
            check_broker_id(name, self._broker_id, " or empty string")
            return (yield from _rows_of(self._broker_names(), self._broker_row))
        if kind == BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            check_broker_id(name, self._broker_id, "")
            return (yield from logger_rows())
        if kind == CLIENT_METRICS and self._config.ottla_metrics_address:
            return self._client_metrics_rows(name)
        if kind == GROUP and has_group_settings(self._config):
            return self._group_rows(name)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    def _group_rows(self, name: str) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        configs = self._dynamic_config.group_configs(name)
        rows = []
        for setting in group_settings().values():
            text = configs.get(setting.name)
            synonyms = []
            if text is not None:
                synonyms.append(DescribeConfigsSynonym(setting.name, text, FROM_GROUP))
            if setting.broker_synonym is not None:
                synonyms += self._synonyms(setting.broker_synonym)
            else:
                default = DescribeConfigsSynonym(setting.name, setting.default, FROM_DEFAULT)
                synonyms.append(default)
            rows.append(_row(setting, synonyms[0].value, synonyms, read_only=False))
        return rows

    def _text_of_group(self, group_id: str, key: str) -> list[DescribeConfigsResourceResult]:
        text = self.group_texts.get(key)
        if text is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {GROUP}")
        return [_text_row(key, text(group_id))]

    def _text_of(self, name: str, key: str) -> list[DescribeConfigsResourceResult]:
        """No row if this broker has no such text, as of a key that does not exist."""
        check_broker_id(name, self._broker_id, "")
        text = self.broker_texts.get(key)
        return [] if text is None else [_text_row(key, text())]

    def _client_metrics_rows(self, name: str) -> list[DescribeConfigsResourceResult]:
        """All settings; an unknown name has the defaults, as in Kafka 4.3."""
        if not name:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
            )
        configs = self._dynamic_config.client_metrics.get(name, {})
        rows = []
        for setting in CLIENT_METRICS_SETTINGS.values():
            text = configs.get(setting.name)
            synonyms = []
            if text is not None:
                synonyms.append(DescribeConfigsSynonym(setting.name, text, FROM_CLIENT_METRICS))
            value = setting.default if text is None else text
            rows.append(_row(setting, value, synonyms, read_only=False))
        return rows

    # -- topics ---------------------------------------------------------------------------------

    def topic_rows(
        self, overrides: Mapping[str, str]
    ) -> Steps[list[DescribeConfigsResourceResult]]:
        """All settings of a topic with these overrides."""
        row = partial(self._topic_row, overrides)
        return (yield from _rows_of(topic_settings().values(), row))

    def _topic_row(
        self, overrides: Mapping[str, str], setting: Setting
    ) -> DescribeConfigsResourceResult:
        name = setting.name
        synonyms: list[DescribeConfigsSynonym] = []
        text = overrides.get(name)
        if text is not None:
            text = format_value(parse_value(setting, text))
            synonyms.append(DescribeConfigsSynonym(name, text, FROM_TOPIC))
        else:
            text = self._config.topic_default_text(name)
        if setting.broker_synonym is not None:
            synonyms.extend(self._synonyms(setting.broker_synonym))
        return _row(setting, text, synonyms, read_only=False)

    # -- brokers --------------------------------------------------------------------------------

    def _broker_names(self) -> list[str]:
        """All defined settings, then others that are set (with listener prefixes)."""
        names = list(broker_settings())
        config = self._config
        for layer in (config.given, config.cluster_dynamic, config.broker_dynamic):
            names.extend(name for name in layer if name not in names)
        return names

    def _broker_row(self, name: str) -> DescribeConfigsResourceResult:
        setting = find_broker_setting(name)
        text = self._config.effective_text(name)
        if setting.type != "password" and text is not None:
            text = format_value(parse_value(setting, text))
        row = _row(setting, text, self._synonyms(name), _is_read_only(setting, name), name)
        return _without_type(row)

    def _cluster_row(self, name: str) -> DescribeConfigsResourceResult:
        setting = find_broker_setting(name)
        text = self._config.cluster_dynamic.get(name)  # None once it is removed, at a pause
        synonyms = [synonym for synonym in self._synonyms(name) if synonym.source == FROM_CLUSTER]
        return _without_type(_row(setting, text, synonyms, _is_read_only(setting, name), name))

    def _synonyms(self, name: str) -> list[DescribeConfigsSynonym]:
        """The values of a broker setting by source, in the order of precedence."""
        config = self._config
        names = same_settings(name)
        layers: tuple[tuple[int, Callable[[str], str | None]], ...] = (
            (FROM_BROKER, config.broker_dynamic.get),
            (FROM_CLUSTER, config.cluster_dynamic.get),
            (FROM_FILE, config.given.get),
            (FROM_DEFAULT, config.default_text),
        )
        found: list[DescribeConfigsSynonym] = []
        for source, get in layers:
            for each in names:
                text = get(each)
                if text is not None:
                    shown = None if find_broker_setting(each).sensitive else text
                    found.append(DescribeConfigsSynonym(each, shown, source))
        # As in Kafka, the list begins with the name of the setting.
        while found and found[0].name != name:
            found.pop(0)
        return found


def has_group_settings(config: BrokerConfig) -> bool:
    """Whether groups have settings: they came with share groups (KIP-932)."""
    return "share" in rebalance_protocols(config.group_coordinator_rebalance_protocols)


def check_broker_id(name: str, broker_id: int, alternative: str) -> None:
    """INVALID_REQUEST unless `name` is this broker's id."""
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if int(name) != broker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker_id}{alternative}, but received {name}",
        )


def _rows_of(
    items: Iterable[T], row: Callable[[T], DescribeConfigsResourceResult]
) -> Steps[list[DescribeConfigsResourceResult]]:
    rows = []
    for item in items:
        rows.append(row(item))
        yield
    return rows


def logger_rows() -> Steps[list[DescribeConfigsResourceResult]]:
    """The loggers of this broker with their effective levels."""
    rows = []
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "ottla"]
    for name in ["root", *sorted(names)]:
        logger = logging.getLogger(None if name == "root" else name)
        level = logging.getLevelName(logger.getEffectiveLevel())
        rows.append(
            DescribeConfigsResourceResult(
                name, "WARN" if level == "WARNING" else level, config_source=FROM_LOGGER
            )
        )
        yield
    return rows


def _is_read_only(setting: Setting, name: str) -> bool:
    """As Kafka describes it: each setting with the prefix of a listener is read-only, although some
    of them change at run time."""
    return setting.mode == READ_ONLY or name != setting.name


def _is_too_long(text: str | None) -> bool:
    """Whether a string of the protocol cannot hold `text`: a list that has grown by APPEND."""
    if text is None or len(text) * 4 <= MAX_STRING_LENGTH:
        return False
    return len(text.encode()) > MAX_STRING_LENGTH


def _text_row(name: str, text: str) -> DescribeConfigsResourceResult:
    """What is no setting."""
    return DescribeConfigsResourceResult(
        name, text, read_only=True, config_source=FROM_DEFAULT, config_type=_TYPES["string"]
    )


def _without_type(row: DescribeConfigsResourceResult) -> DescribeConfigsResourceResult:
    """A row of a broker; that of an unknown setting has no type."""
    if not is_broker_setting(row.name):
        row.config_type = 0
    return row


def _row(
    setting: Setting,
    text: str | None,
    synonyms: list[DescribeConfigsSynonym],
    read_only: bool,
    name: str | None = None,
) -> DescribeConfigsResourceResult:
    source = synonyms[0].source if synonyms else FROM_DEFAULT
    return DescribeConfigsResourceResult(
        name=name or setting.name,
        value=None if setting.sensitive else text,
        read_only=read_only,
        config_source=source,
        is_sensitive=setting.sensitive,
        synonyms=synonyms,
        config_type=_TYPES[setting.type],
        documentation=None,
    )


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for resource in request.resources:
        response.results.append(
            DescribeConfigsResult(code, message, resource.resource_type, resource.resource_name)
        )


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_CONFIGS,
        ConfigDescriber.handle,
        check="describe_configs",
        errors=_error_rows,
        items=(Items("resources", "results", weigh=weigh_keys),),
    ),
)
