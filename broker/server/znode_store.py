"""The znode tree that the settings name: in the data directory, or in ZooKeeper."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE
from ottla.controller.registration import InconsistentClusterId
from ottla.controller.tree.store import ZooKeeperUnreachable
from ottla.storage.directories.log_directories import read_meta_properties
from ottla.storage.errors import StorageError
from ottla.storage.files.fs import RealFileSystem

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.tree.store import ZnodeStore
    from ottla.controller.tree.tree_file import WriteProblem

logger = logging.getLogger("ottla.broker")

# kazoo resolves a host and port before it connects; the handler connects to the socket instead.
SUPERVISOR_HOST = "127.0.0.1:2181"


async def connect_store(store: ZnodeStore, *, may_do_without: bool = False) -> None:
    """Connects, and leaves a missing chroot as it is: it may be a typing error.
    `may_do_without`: the error names the way without ZooKeeper."""
    if hasattr(store, "make_root"):
        try:
            await store.connect(make_root=False)  # type: ignore[call-arg]  # ZooKeeper's
        except ZooKeeperUnreachable as error:
            if not may_do_without:
                raise
            raise ZooKeeperUnreachable(
                "",
                f"{error} A broker that is alone needs no ZooKeeper: remove zookeeper.connect.",
            ) from None
    else:
        await store.connect()


async def make_root(store: ZnodeStore) -> None:
    """Creates the chroot of a store that is connected, where it is missing."""
    make = getattr(store, "make_root", None)
    if make is not None:
        await make()


def embedded_path(directories: Sequence[str]) -> str:
    """The file of the embedded tree: in the directory that has one already, else in the first.

    The order of `log.dirs` may have changed, or a new directory may be the first one. Raises
    InconsistentClusterId when there is data of a cluster and no tree: its disk may be missing.
    """
    paths = [os.path.join(os.path.abspath(each), EMBEDDED_STORE_FILE) for each in directories]
    found = [path for path in paths if os.path.exists(path)]
    if not found:
        _check_no_data(directories)
        return paths[0]
    if len(found) > 1:
        logger.warning(
            "There are several znode trees, %s: using the first one; move the others away",
            ", ".join(found),
        )
    elif found[0] != paths[0]:
        logger.info("The znode tree is %s, not in the first directory of log.dirs", found[0])
    return found[0]


def _check_no_data(directories: Sequence[str]) -> None:
    for directory in map(os.path.abspath, directories):
        try:
            meta = read_meta_properties(RealFileSystem(), directory)
        except (OSError, StorageError):
            continue  # the check of the identity reports it
        if meta is not None and meta.cluster_id is not None:
            raise InconsistentClusterId(
                f"The data in {directory} belongs to the cluster {meta.cluster_id}, and no "
                f"directory of log.dirs has its znode tree ({EMBEDDED_STORE_FILE}): mount the disk"
                " or name the directory that has it, or restore that file. A broker of a cluster "
                "with ZooKeeper needs zookeeper.connect."
            )


def open_store(config: BrokerConfig) -> ZnodeStore:
    """The znode tree, not connected yet. Raises ConfigError."""
    if config.worker is not None and config.embedded:
        return _supervisors_store(config, config.worker.tree_socket)
    if config.embedded:
        from ottla.controller.tree.embedded_store import EmbeddedStore

        return EmbeddedStore(embedded_path(config.log_directories()))
    from ottla.broker.security.zookeeper_login import zookeeper_store

    return zookeeper_store(config)


def _supervisors_store(config: BrokerConfig, path: str) -> ZnodeStore:
    """The tree that the supervisor of this worker serves by ZooKeeper's protocol on a Unix
    socket: only processes of its user reach that."""
    from ottla.controller.tree.zookeeper_store import ZooKeeperStore

    return ZooKeeperStore(
        SUPERVISOR_HOST,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_timeout_ms(),
        unix_path=path,
    )


def write_problem(store: ZnodeStore) -> WriteProblem | None:
    """Why the file of a store in the data directory cannot be written; None if it can."""
    return getattr(store, "write_problem", None)
