"""The znode tree that the settings name: in the data directory, or in ZooKeeper."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.tree.store import ZnodeStore


def open_store(config: BrokerConfig) -> ZnodeStore:
    """The znode tree, not connected yet. Raises ConfigError."""
    if config.embedded:
        from ottla.controller.tree.embedded_store import EmbeddedStore

        directory = os.path.abspath(config.log_directories()[0])
        return EmbeddedStore(os.path.join(directory, EMBEDDED_STORE_FILE))
    from ottla.broker.security.zookeeper_login import zookeeper_store

    return zookeeper_store(config)
