"""The znode tree without a broker: in its SQLite file, or in ZooKeeper."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.server.znode_store import connect_store, make_root, open_store
from ottla.cli.output import Failure, usage
from ottla.controller.tree.store import StoreError
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.controller.tree.store import ZnodeStore

T = TypeVar("T")


class Place(NamedTuple):
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


class OfflineTree:
    """Opens the tree for each `run`. Raises Failure."""

    def __init__(self, place: Place, missing: str) -> None:
        """`missing` is the advice where a log directory has no znode tree."""
        if bool(place.data_dir) + bool(place.zookeeper) + bool(place.config) > 1:
            raise usage("name one of --data-dir, --zookeeper and --config.")
        self._missing = missing
        try:
            self._config = place.settings()
        except ConfigError as error:
            raise Failure(str(error)) from None

    def run(self, work: Callable[[ZnodeStore], Awaitable[T]], *, makes_root: bool = False) -> T:
        """The result of `work`. With `makes_root` the chroot of zookeeper.connect is created where
        it is missing: no broker of the cluster has been started."""

        async def run() -> T:
            store = open_store(self._config)
            await connect_store(store)
            try:
                if makes_root:
                    await make_root(store)
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
                f"there is no {EMBEDDED_STORE_FILE} in {', '.join(paths)}: {self._missing}."
            )
        return [path for path in paths if os.path.isdir(path)]
