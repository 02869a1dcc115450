"""What happens when a disk fails: its partitions go offline, the cluster is told, others go on.

Storage notices the failure at the operation that hit it and refuses the directory from then on. The
broker learns of it by the error, or by looking once a second; either way each directory is dealt
with once. A broker whose last directory has failed has nothing to serve and ends (KIP-112).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znodes_admin import encode_log_dir_event

if TYPE_CHECKING:
    from ottla.broker.replication.leader_and_isr import Fetchers
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.directories.log_manager import LogManager

logger = logging.getLogger("ottla.broker")

_ANNOUNCE_AGAIN_SECONDS = 1.0


class DirectoryFailures:
    """Takes the partitions of failed directories out of service. Loop only."""

    def __init__(
        self,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        store: ZnodeStore,
        fetchers: Fetchers,
        on_offline: Callable[[list[Partition]], None],
        on_all_failed: Callable[[], None],
    ) -> None:
        """`on_offline` is told which partitions went; `on_all_failed` that no disk is left."""
        self._fetchers = fetchers
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._store = store
        self._on_offline = on_offline
        self._on_all_failed = on_all_failed
        self._known: set[str] = set()

    def check(self) -> None:
        """Deals with the directories that have failed since the last look."""
        for directory in self._log_manager.offline_directories:
            if directory not in self._known:
                self._known.add(directory)
                self._take_offline(directory)

    def handle(self, directory: str) -> None:
        """An operation was refused because `directory` has failed."""
        self.check()

    def _take_offline(self, directory: str) -> None:
        gone = [
            partition
            for partition in self._replica_manager.partitions.values()
            if partition.log is not None and partition.log.log_directory.path == directory
        ]
        logger.error(
            "log directory %s has failed: %d partitions are offline until it is mended and the "
            "broker started again",
            directory,
            len(gone),
        )
        for partition in gone:
            partition.offline = True
            partition.is_leader = False
        self._fetchers.stop(gone)
        for partition in gone:
            self._replica_manager.wake_all(partition)
        self._on_offline(gone)
        if not self._log_manager.directories.online():
            logger.critical("no log directory is left: the broker ends")
            self._on_all_failed()
            return
        spawn(self._announce(), name="log-dir-event")

    async def _announce(self) -> None:
        """Tells the controller to ask us what we still have; twice does no harm, never would."""
        while True:
            try:
                await self._store.create(
                    znodes.LOG_DIR_EVENT_PREFIX,
                    encode_log_dir_event(self._replica_manager.context.broker_id),
                    sequential=True,
                    make_parents=True,
                )
                return
            except StoreError as error:
                logger.warning("the controller cannot be told of the failed disk yet: %s", error)
            await asyncio.sleep(_ANNOUNCE_AGAIN_SECONDS)
