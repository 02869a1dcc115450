"""Settings in the znode tree, without a broker: in its SQLite file, or in ZooKeeper.

For brokers that do not start because of what is stored there, or that nobody can connect to.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.dynamic_rules import is_secret
from ottla.broker.config.errors import ConfigError
from ottla.broker.server.znode_store import connect_store, open_store
from ottla.cli.output import Cell, Failure, usage
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import Unreadable, read_entities, write_config
from ottla.controller.tree.store import StoreError
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.controller.tree.store import ZnodeStore

T = TypeVar("T")

KINDS = ("topic", "broker", "cluster")


class Tree(NamedTuple):
    """Where the znode tree is: the options of the command. Without any, in the log directory of a
    broker that is started here without a file."""

    data_dir: str
    zookeeper: str
    config: str

    def settings(self) -> BrokerConfig:
        """Those of the broker, as far as they are known. Raises ConfigError."""
        if self.config:
            return BrokerConfig.load(self.config, environment=os.environ)
        if self.zookeeper:
            return BrokerConfig({"zookeeper.connect": self.zookeeper})
        return BrokerConfig({"log.dirs": self.data_dir} if self.data_dir else {})


class OfflineConfigs:
    """Each call opens the tree. Raises Failure."""

    def __init__(self, tree: Tree) -> None:
        if bool(tree.data_dir) + bool(tree.zookeeper) + bool(tree.config) > 1:
            raise usage("name one of --data-dir, --zookeeper and --config.")
        try:
            self._config = tree.settings()
        except ConfigError as error:
            raise Failure(str(error)) from None

    def describe(self, kind: str, name: str) -> list[dict[str, Cell]]:
        """What is stored, as it is: a broker may ignore some of it."""
        entity = _entity(kind, name)
        properties = self._run(lambda store: _read(store, entity))
        return [
            {"setting": key, "value": "(secret)" if is_secret(key) else properties[key]}
            for key in sorted(properties)
        ]

    def unset(self, kind: str, name: str, settings: Sequence[str]) -> list[str]:
        """Removes settings, all of them if none is named; returns those that were there."""
        entity = _entity(kind, name)

        async def change(store: ZnodeStore) -> list[str]:
            if not settings:
                found = (await read_entities(store, [entity]))[entity]
                await write_config(store, entity, {})
                return [] if isinstance(found, Unreadable) else sorted(found)
            properties = await _read(store, entity)
            removed = [each for each in settings if properties.pop(each, None) is not None]
            if removed:
                await write_config(store, entity, properties)
            return removed

        return self._run(change)

    def _run(self, work: Callable[[ZnodeStore], Awaitable[T]]) -> T:
        async def run() -> T:
            store = open_store(self._config)
            await connect_store(store)
            try:
                return await work(store)
            finally:
                await store.close()

        locks: list[DirectoryLock] = []
        try:
            if self._config.embedded:
                locks = [DirectoryLock(path) for path in self._checked_directories()]
            return asyncio.run(run())
        except (StorageError, StoreError, OSError, ConfigError) as error:
            raise Failure(f"{str(error).rstrip('.')}.") from None
        finally:
            for lock in locks:
                lock.release()

    def _checked_directories(self) -> list[str]:
        paths = self._config.log_directories()
        if not any(os.path.exists(os.path.join(path, EMBEDDED_STORE_FILE)) for path in paths):
            raise Failure(
                f"there is no {EMBEDDED_STORE_FILE} in {', '.join(paths)}: name the first "
                "directory of log.dirs with --data-dir, a ZooKeeper with --zookeeper, or the file "
                "of the broker with --config."
            )
        return [path for path in paths if os.path.isdir(path)]


def _entity(kind: str, name: str) -> str:
    if kind not in KINDS:
        raise usage(f"--offline is for {', '.join(KINDS)}, not for {kind}.")
    if kind == "topic":
        return f"{znodes.ENTITY_TOPICS}/{name}"
    return f"{znodes.ENTITY_BROKERS}/{name or znodes.DEFAULT_ENTITY}"


async def _read(store: ZnodeStore, entity: str) -> dict[str, str]:
    path = znodes.config_path(entity)
    if await store.exists(path) is None:
        return {}
    found = (await read_entities(store, [entity]))[entity]
    if isinstance(found, Unreadable):
        raise Failure(f"{found.problem}. `ottla configs unset ... --all` empties it.")
    return found
