"""The znode tree that the settings name: in the data directory, or in ZooKeeper."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.tree.store import ZnodeStore
    from ottla.controller.tree.tree_file import WriteProblem


async def connect_store(store: ZnodeStore) -> None:
    """Connects, and leaves a missing chroot as it is: it may be a typing error."""
    if hasattr(store, "make_root"):
        await store.connect(make_root=False)  # type: ignore[call-arg]  # ZooKeeper's, by its method
    else:
        await store.connect()


async def make_root(store: ZnodeStore) -> None:
    """Creates the chroot of a store that is connected, where it is missing."""
    make = getattr(store, "make_root", None)
    if make is not None:
        await make()


def open_store(config: BrokerConfig) -> ZnodeStore:
    """The znode tree, not connected yet. Raises ConfigError."""
    if config.embedded:
        from ottla.controller.tree.embedded_store import EmbeddedStore

        directory = os.path.abspath(config.log_directories()[0])
        return EmbeddedStore(os.path.join(directory, EMBEDDED_STORE_FILE))
    from ottla.broker.security.zookeeper_login import zookeeper_store

    return zookeeper_store(config)


def write_problem(store: ZnodeStore) -> WriteProblem | None:
    """Why the file of a store in the data directory cannot be written; None if it can."""
    return getattr(store, "write_problem", None)
