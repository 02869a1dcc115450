"""Settings that change at run time: topics', groups' and brokers' entities under `/config`.

`ottla.controller.tree.entity_configs` reads and writes the entities and brings every change that
any broker announces; this keeps the parts that this broker acts on. Quota entities (clients,
users, ips) are handed on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ottla.broker.config.definitions import parse_value, topic_settings
from ottla.broker.config.dynamic_rules import is_secret
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import (
    PROTECTING,
    ConfigChangeWatcher,
    Unreadable,
    change_config,
    entities_of,
    read_config,
    read_configs,
    read_entities,
)
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.listed import abridged, listed
from ottla.protocol.steps import Turn
from ottla.protocol.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.runtime import Runtime
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.config import LogConfig

logger = logging.getLogger("ottla.config")

Properties = dict[str, str]

# Of a topic whose settings are not known: it may have to keep its records for ever.
_KEEP_RECORDS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# Which records may be removed, and when.
_REMOVING = frozenset(
    (
        *_KEEP_RECORDS,
        *("delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms"),
        *("local.retention.ms", "local.retention.bytes"),
    )
)
_KEEPS = "the topic keeps all its records, and has the defaults otherwise,"


class ConfigListener(Protocol):
    """Called on the loop after a change was taken; what is read then is the new state."""

    def topic_changed(self, topic: str) -> None:
        """The settings of a topic changed."""

    def broker_changed(self, names: list[str]) -> None:
        """These settings of this broker changed."""

    def quota_changed(self, kind: str, name: str, properties: Properties) -> None:
        """The settings of a client, user or ip: entity type, and the name below the type."""

    def quota_unreadable(self, entity: str, found: Unreadable, *, is_known: bool) -> None:
        """The settings of a client, user or ip cannot be read; `is_known`: earlier ones apply."""

    def client_metrics_changed(self, name: str, properties: Properties) -> None:
        """The settings of a client metrics resource."""


class _Reading:
    """Entities that are read, until the result is taken."""

    __slots__ = ("taken_by_others",)

    def __init__(self) -> None:
        self.taken_by_others: set[str] = set()


class DynamicConfig:
    """The dynamic settings of topics and brokers, kept in step with the znode tree."""

    #: Receives each change.
    listener: ConfigListener

    def __init__(
        self,
        store: ZnodeStore,
        runtime: Runtime,
        config: BrokerConfig,
        broker_id: int,
        make_log_config: Callable[[Properties], LogConfig],
        listener: ConfigListener | None = None,
        unusable: UnusableZnodes | None = None,
    ) -> None:
        """`make_log_config` builds a log's settings from all topic settings as text. Without a
        `listener` one is assigned before `start`. `unusable` gets the znodes that cannot be read;
        the settings that they had, if any, stay."""
        if listener is not None:
            self.listener = listener
        self._store = store
        self._config = config
        self._broker_id = broker_id
        self._make_log_config = make_log_config
        self._topics: dict[str, Properties] = {}
        self._log_configs: dict[str, LogConfig] = {}
        #: The settings of client metrics resources by name.
        self.client_metrics: dict[str, Properties] = {}
        self._groups: dict[str, Properties] = {}
        self._cluster: Properties = {}
        self._broker: Properties = {}
        # The entities that have settings, by path.
        self._known: dict[str, None] = {}
        self._readings: list[_Reading] = []
        self._unusable = UnusableZnodes() if unusable is None else unusable
        self._watcher = ConfigChangeWatcher(
            store, runtime, self._take_announced, self._take_missed, self._take_unreadable
        )

    # -- reading --------------------------------------------------------------------------------

    def topic_overrides(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic that differ from the broker's defaults."""
        return self._topics.get(topic, {})

    def tiered_topics(self) -> list[str]:
        """The topics that have `remote.storage.enable=true`."""
        return sorted(
            topic
            for topic, properties in self._topics.items()
            if properties.get("remote.storage.enable", "").strip().lower() == "true"
        )

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """The settings of a group that are set."""
        return self._groups.get(group_id, {})

    def group_names(self) -> list[str]:
        """The groups that have settings, with members or without."""
        return list(self._groups)

    def log_config(self, topic: str) -> LogConfig:
        """All settings of a topic's logs; the same object until one of them changes."""
        found = self._log_configs.get(topic)
        if found is None:
            overrides = self._topics.get(topic)
            is_internal = topic in INTERNAL_TOPICS
            if overrides is None and topic and not is_internal:
                # Topics without settings of their own share one object.
                found = self.log_config("")
            else:
                properties = {**self._config.topic_defaults(), **(overrides or {})}
                if is_internal:
                    # Coordinators write in the current format: these logs keep leader epochs.
                    properties["message.format.version"] = "3.0"
                found = self._made(topic, properties)
            self._log_configs[topic] = found
        return found

    def _made(self, topic: str, properties: dict[str, str]) -> LogConfig:
        try:
            return self._make_log_config(properties)
        except ValueError as error:
            logger.error(
                "The settings of topic %s contradict each other, %s until they are corrected: %s",
                topic,
                _KEEPS,
                error,
            )
            return self._make_log_config({**self._config.topic_defaults(), **_KEEP_RECORDS})

    async def read(self, entity: str) -> Properties:
        """The present content of an entity's znode; empty without one. Raises UnreadableConfig."""
        return await read_config(self._store, entity)

    async def read_topics(self, topics: Iterable[str]) -> dict[str, Mapping[str, str]]:
        """The settings of topics as the znode tree has them now, by topic; while it is away, as
        far as they are known here.

        A broker follows the settings of all topics, but a tool or a broker of Kafka that creates
        a topic with settings does not announce them: only the brokers with a replica read them.
        """
        wanted = {f"{znodes.ENTITY_TOPICS}/{topic}": topic for topic in topics}
        try:
            found = await read_configs(self._store, wanted)
        except StoreError:
            return {topic: self.topic_overrides(topic) for topic in wanted.values()}
        return {topic: found[entity] for entity, topic in wanted.items()}

    async def read_all(self, kind: str) -> dict[str, Properties]:
        """The present settings of all entities of a type (`users` with clients, ...), by path."""
        return await read_configs(self._store, await entities_of(self._store, kind))

    async def change(
        self, entity: str, change: Callable[[Properties], Awaitable[Properties]]
    ) -> None:
        """Replaces an entity's settings by what `change` makes of them and announces it; durable
        and applied here on return.

        `change` runs again if the settings change meanwhile. Raises UnreadableConfig, and changes
        nothing, where the node holds what cannot be read.
        """
        properties = await change_config(self._store, entity, change)
        self._take(entity, properties)

    # -- following changes ----------------------------------------------------------------------

    async def start(self) -> None:
        """Reads everything there is and follows changes from then on."""
        await self._watcher.start()
        await self._take_current(await self._all_entities())

    async def read_again(self, entity: str) -> None:
        """Takes what an entity holds now: a repair by hand is not announced."""
        await self._take_current([entity])

    async def _take_missed(self) -> None:
        """After changes that were not announced to this broker."""
        await self._take_current(await self._all_entities())

    async def _all_entities(self) -> list[str]:
        """Also those that were deleted since the last time."""
        brokers = [f"{znodes.ENTITY_BROKERS}/{each}" for each in _broker_entities(self._broker_id)]
        entities = [*brokers, *self._known]
        others = (znodes.ENTITY_CLIENT_METRICS, znodes.ENTITY_GROUPS)
        for kind in (*znodes.ENTITY_TYPES, *others):
            if kind != znodes.ENTITY_BROKERS:
                entities.extend(await entities_of(self._store, kind))
        return entities

    async def _take_current(self, entities: Iterable[str]) -> None:
        """Takes what the entities hold now. Other tasks run between changes.

        What cannot be applied is logged: a tool that writes the znode itself has not had it
        validated by a broker, and neither a start nor the partitions of other topics wait for it.

        What others take of an entity meanwhile may be newer than what was read here: it is read
        again.
        """
        wanted = list(dict.fromkeys(entities))
        turn = Turn()
        while wanted:
            reading = _Reading()
            self._readings.append(reading)
            try:
                for entity, properties in (await read_entities(self._store, wanted)).items():
                    if entity in reading.taken_by_others:
                        continue
                    if isinstance(properties, Unreadable):
                        self._take_unreadable(entity, properties)
                        continue
                    try:
                        has_changed = self._take(entity, properties, reading)
                    except (ConfigError, MalformedZnode, ValueError) as error:
                        logger.error(
                            "Ignoring the configuration of %s, which cannot be applied: %s",
                            entity,
                            error,
                        )
                        continue
                    except Exception:  # the others are taken
                        logger.exception("Failed to apply the configuration of %s", entity)
                        continue
                    if has_changed:
                        await turn.share()
            finally:
                self._readings.remove(reading)
            wanted = [entity for entity in wanted if entity in reading.taken_by_others]

    def stop(self) -> None:
        """No change is taken after this."""
        self._watcher.stop()

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted, and there is no log of it here any more."""
        entity = f"{znodes.ENTITY_TOPICS}/{topic}"
        self._note(entity)
        self._topics.pop(topic, None)
        self._known.pop(entity, None)
        self._log_configs.pop(topic, None)

    async def load_topics(self, topics: Iterable[str]) -> None:
        """Reads the settings of topics before logs of them are created.

        The creation of a topic is announced only when it has settings, and perhaps later than the
        controller's order to open its logs comes. What is known here may be the settings of an
        earlier topic of the name, whose deletion is not announced at all.
        """
        entities = [f"{znodes.ENTITY_TOPICS}/{topic}" for topic in topics]
        if not entities:
            return
        await self._take_current(entities)

    def _take_announced(self, kind: str, name: str, properties: Properties) -> None:
        self._take(f"{kind}/{name}", properties)

    def _note(self, entity: str, reading: _Reading | None = None) -> None:
        """The other readings read the entity again."""
        for each in self._readings:
            if each is not reading:
                each.taken_by_others.add(entity)

    def _take_unreadable(self, entity: str, found: Unreadable) -> None:
        kind = entity.partition("/")[0]
        if kind == znodes.ENTITY_TOPICS:
            effect = "the settings of the topic stay as they were"
            if entity not in self._known:
                effect = _KEEPS
                self._apply_to_topic(entity.partition("/")[2], dict(_KEEP_RECORDS))
            self._unusable.report(*found, effect, partial(self.read_again, entity))
        elif kind not in PROTECTING:
            logger.error("The settings of %s stay as they were: %s", entity, found.problem)
        elif kind != znodes.ENTITY_BROKERS:
            self.listener.quota_unreadable(entity, found, is_known=entity in self._known)
        elif entity.partition("/")[2] in _broker_entities(self._broker_id):
            self._unusable.report(
                *found,
                "the settings of the broker stay as they were, and it does not start again,",
                partial(self.read_again, entity),
            )

    def _take(self, entity: str, properties: Properties, reading: _Reading | None = None) -> bool:
        """Whether these are other settings of a topic; `reading` is whose result this is."""
        self._note(entity, reading)
        if properties:
            self._known[entity] = None
        else:
            self._known.pop(entity, None)
        kind, _, name = entity.partition("/")
        if kind == znodes.ENTITY_TOPICS:
            return self._take_topic(name, properties)
        if kind == znodes.ENTITY_BROKERS:
            if name in _broker_entities(self._broker_id):
                self._unusable.repaired(znodes.config_path(entity))
                self._take_broker(name, properties)
        elif kind == znodes.ENTITY_CLIENT_METRICS:
            self._take_client_metrics(znodes.desanitize(name), properties)
        elif kind == znodes.ENTITY_GROUPS:
            self._take_group(znodes.desanitize(name), properties)
        else:
            self.listener.quota_changed(kind, name, properties)
        return False

    def _take_group(self, group_id: str, properties: Properties) -> None:
        if self._groups.get(group_id, {}) == properties:
            return
        if properties:
            self._groups[group_id] = properties
        else:
            self._groups.pop(group_id, None)
        logger.info(
            "Updated the settings of group %s: %s",
            group_id,
            _shown(properties),
            extra={"group": group_id},
        )

    def _take_client_metrics(self, name: str, properties: Properties) -> None:
        if properties:
            self.client_metrics[name] = properties
        else:
            self.client_metrics.pop(name, None)
        self.listener.client_metrics_changed(name, properties)

    def _take_topic(self, name: str, properties: Properties) -> bool:
        entity = f"{znodes.ENTITY_TOPICS}/{name}"
        path = znodes.config_path(entity)
        properties, problems, effect = _without_wrong_values(properties)
        if problems:
            problem = f"{path}: {'; '.join(problems)}"
            self._unusable.report(path, problem, effect, partial(self.read_again, entity))
        else:
            self._unusable.repaired(path)
        return self._apply_to_topic(name, properties)

    def _apply_to_topic(self, name: str, properties: Properties) -> bool:
        if self._topics.get(name, {}) == properties:
            return False
        if properties:
            self._topics[name] = properties
        else:
            self._topics.pop(name, None)
        self._log_configs.pop(name, None)
        shown = _shown(properties)
        logger.info("Updated the settings of topic %s: %s", name, shown, extra={"topic": name})
        self.listener.topic_changed(name)
        return True

    def _take_broker(self, name: str, properties: Properties) -> None:
        if name == znodes.DEFAULT_ENTITY:
            self._cluster = properties
        else:
            self._broker = properties
        changed = _update(self._config, self._cluster, self._broker, is_running=True)
        if not changed:
            return
        self._log_configs.clear()
        logger.info("Updated broker settings: %s", listed(changed))
        self.listener.broker_changed(changed)


def _shown(properties: Properties) -> Properties:
    """For a log line: a list that grows by APPEND can have a megabyte."""
    return {name: abridged(text) for name, text in properties.items()}


def _without_wrong_values(properties: Properties) -> tuple[Properties, list[str], str]:
    """The values that another tool wrote and that no broker accepts are left out: neither a start
    nor the log waits for their repair. If they say which records may be removed, none is.

    Also returns what is wrong, and what applies instead.
    """
    kept: Properties = {}
    problems: list[str] = []
    effect = "the defaults apply"
    known = topic_settings()
    for name, text in properties.items():
        try:
            if name in known:
                parse_value(known[name], text)
            kept[name] = text
        except (ConfigError, ValueError) as error:
            problems.append(str(error))
            if name in _REMOVING:
                effect = _KEEPS
    return kept | _KEEP_RECORDS if effect is _KEEPS else kept, problems, effect


async def load_broker_settings(
    store: ZnodeStore, config: BrokerConfig, broker_id: int
) -> list[str]:
    """Reads the dynamic settings of a broker into `config`, before anything is built from it.

    Returns the names of the settings that changed. Raises ConfigError for a znode that cannot be
    read: it may restrict clients.
    """
    entities = [f"{znodes.ENTITY_BROKERS}/{name}" for name in _broker_entities(broker_id)]
    found = {}
    for entity, properties in (await read_entities(store, entities)).items():
        if isinstance(properties, Unreadable):
            raise ConfigError(
                f"{properties.problem}. It has dynamic settings of this broker, which may restrict "
                "clients: restore the znode, or remove all of them with `ottla configs unset "
                f"{_resource(entity)} --all --offline`."
            )
        found[entity] = properties
    if _encoded_again(config, found.get(entities[1], {})) is not None:

        async def encode(properties: Properties) -> Properties:
            return _encoded_again(config, properties) or properties

        found[entities[1]] = await change_config(store, entities[1], encode)
        logger.info("Encrypted the passwords of dynamic settings with password.encoder.secret")
    return _update(config, *(found.get(entity, {}) for entity in entities), is_running=False)


def _encoded_again(config: BrokerConfig, properties: Properties) -> Properties | None:
    """The settings with secrets of `password.encoder.old.secret` encoded with the new secret; None
    when there are none."""
    if not (config.password_encoder_old_secret and config.secrets.has_encoder):
        return None
    old = config.old_secrets()
    readable = {
        name: text
        for name, text in old.decode_all(properties).items()
        if is_secret(name) and text != properties[name]
    }
    return {**properties, **config.secrets.encode_all(readable)} if readable else None


def _broker_entities(broker_id: int) -> tuple[str, str]:
    """The settings of all brokers, then those of one."""
    return znodes.DEFAULT_ENTITY, str(broker_id)


def _resource(entity: str) -> str:
    """As the arguments of `ottla configs`."""
    name = entity.partition("/")[2]
    return "cluster" if name == znodes.DEFAULT_ENTITY else f"broker {name}"


def _update(
    config: BrokerConfig, cluster: Properties, broker: Properties, *, is_running: bool
) -> list[str]:
    known = len(config.warnings)
    changed = config.update_dynamic(cluster, broker, is_running=is_running)
    for warning in config.warnings[known:]:
        logger.warning("%s", warning)
    return changed
