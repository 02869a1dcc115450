"""Configuration entities on a znode tree in memory, with a broker's settings on top."""

from __future__ import annotations

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.dynamic_config import DynamicConfig, Properties
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.controller.registration import create_persistent_paths
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import Unreadable
from ottla.controller.tree.store import CreateOp, DeleteOp, ZnodeStore
from ottla.storage.config import LogConfig
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.forbidden_znodes import ForbiddenZnodes
from tests.doubles.replicas import Replicas

BROKER = 1


async def delete_unread(store: ZnodeStore, prefix: str = znodes.CONFIG_CHANGE_PREFIX) -> None:
    """A change notification that is deleted in the moment in which it is created."""
    stat = await store.exists(prefix.rpartition("/")[0])
    assert stat is not None
    path = f"{prefix}{(stat.cversion + stat.children_count) // 2:010d}"
    await store.multi([CreateOp(path), DeleteOp(path)])


class NotedChanges:
    """Notes the topics and settings that it is notified of."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.settings: list[str] = []
        self.quotas: dict[str, dict[str, str]] = {}
        #: Whether settings are known, by entity that cannot be read.
        self.unreadable: dict[str, bool] = {}

    def topic_changed(self, topic: str) -> None:
        self.topics.append(topic)

    def broker_changed(self, names: list[str]) -> None:
        self.settings.extend(names)

    def quota_changed(self, kind: str, name: str, properties: dict[str, str]) -> None:
        self.quotas[f"{kind}/{name}"] = properties

    def quota_unreadable(self, entity: str, found: Unreadable, *, is_known: bool) -> None:
        self.unreadable[entity] = is_known

    def client_metrics_changed(self, name: str, properties: dict[str, str]) -> None:
        pass


class Entities:
    """Broker 1's settings; `start` first. Topic `t` exists."""

    def __init__(self, **given: str) -> None:
        self.config = BrokerConfig({name.replace("_", "."): text for name, text in given.items()})
        self.store = ForbiddenZnodes()
        self.unusable = UnusableZnodes()
        self.runtime = ManualRuntime()
        self.changes = NotedChanges()
        self.dynamic = DynamicConfig(
            self.store,
            self.runtime,
            self.config,
            BROKER,
            LogConfig.from_properties,
            self.changes,
            self.unusable,
        )
        replicas = Replicas()
        replicas.publish()
        self.metadata: MetadataCache = replicas.metadata

    async def start(self) -> Entities:
        await self.store.connect()
        await create_persistent_paths(self.store)
        await self.dynamic.start()
        return self

    async def write(self, entity: str, properties: Properties) -> None:
        """Replaces the settings of an entity."""

        async def change(_: Properties) -> Properties:
            return properties

        await self.dynamic.change(entity, change)

    async def stop(self) -> None:
        self.dynamic.stop()
        await self.store.close()
