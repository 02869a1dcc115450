"""Failures of log directories (KIP-112): their partitions go offline, the others stay online.

Storage marks a log directory as offline at the first failed operation, and refuses all later ones.
The broker sees that in the error, or in a check once a second; each directory is handled once. The
broker shuts down when its last log directory has failed.

The directory of one log that somebody has deleted or moved is no failed disk, which it would be in
Kafka: only that replica goes offline, in the same way, and the controller elects another leader.

A replica that cannot start for lack of disk space or descriptors is offline to the controller, too.
Only a LeaderAndIsr can start it, and the controller sends none by itself.
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
from ottla.protocol.steps import Steps, run
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.fetcher_manager import FetcherManager
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.directories.log_manager import LogManager

logger = logging.getLogger("ottla.broker")

_RETRY_SECONDS = 1.0
# Until replicas that could not start are retried; the controller sends all of this broker's.
_UNSTARTED_SECONDS = 5.0


class LogDirFailureHandler:
    """Takes the partitions of failed log directories offline. Loop only.

    Mirrors Kafka's `LogDirFailureHandler` and `handleLogDirFailure` of its `ReplicaManager`.
    """

    def __init__(
        self,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        store: ZnodeStore,
        fetchers: FetcherManager,
        on_offline: Callable[[list[Partition]], None],
        on_all_failed: Callable[[], None],
        *,
        needs_all: bool = False,
    ) -> None:
        """`on_offline` is called with the partitions of a failed directory, `on_all_failed` when no
        directory is left. With `needs_all` it is called when one has failed."""
        self._fetchers = fetchers
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._store = store
        self._on_offline = on_offline
        self._on_all_failed = on_all_failed
        self._needs_all = needs_all
        self._known: set[str] = set()
        self._retries_unstarted = False
        self._confirms_gone = False

    def check(self) -> None:
        """Handles the log directories that have failed since the last check, logs that are gone,
        and replicas that could not start."""
        for directory in self._log_manager.offline_directories:
            if directory not in self._known:
                self._known.add(directory)
                self._take_offline(directory)
        if not self._confirms_gone:
            self._confirms_gone = True
            rest = run(self._stop_serving_gone())
            if rest is not None:
                spawn(rest, name="gone-logs")
        unstarted, partitions = self._replica_manager.unstarted, self._replica_manager.partitions
        unstarted.intersection_update(partitions)
        if unstarted and not self._retries_unstarted:
            self._retries_unstarted = True
            spawn(self._retry_unstarted(), name="retry-unstarted-replicas")

    async def _retry_unstarted(self) -> None:
        """Requests a LeaderAndIsr for replicas that could not start."""
        try:
            await asyncio.sleep(_UNSTARTED_SECONDS)
            if self._replica_manager.unstarted:
                await self._notify_controller()
        finally:
            self._retries_unstarted = False

    def handle(self, directory: str) -> None:
        """Handles `directory`, on which an operation has failed, perhaps of one log only."""
        self.check()

    def _take_offline(self, directory: str) -> None:
        gone = [
            partition
            for partition in self._replica_manager.partitions.values()
            if partition.log is not None and partition.log.log_directory.path == directory
        ]
        logger.error(
            "Stopping serving replicas in dir %s: it has failed, and its %d partitions are offline "
            "until it is repaired and the broker is restarted",
            directory,
            len(gone),
        )
        self._stop_serving(gone)
        if self._needs_all:
            # As Kafka does: brokers of before 1.0 know of no offline replicas.
            logger.critical(
                "Shutdown broker because dir %s is offline and inter.broker.protocol.version is "
                "below 1.0",
                directory,
            )
            self._on_all_failed()
            return
        if not self._log_manager.directories.online():
            logger.critical("Shutdown broker because all log dirs have failed")
            self._on_all_failed()
            return
        spawn(self._notify_controller(), name="log-dir-event")

    def _stop_serving_gone(self) -> Steps[None]:
        """In turns: somebody may have deleted thousands."""
        try:
            gone = yield from self._log_manager.confirm_gone()
            partitions = self._replica_manager.partitions
            for log in gone:
                partition = partitions.get(TopicPartition(log.topic, log.partition))
                if partition is not None and partition.log is log:
                    self._stop_serving([partition])
                yield
        finally:
            self._confirms_gone = False
        if gone:
            spawn(self._notify_controller(), name="log-dir-event")

    def _stop_serving(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            partition.offline = True
            partition.is_leader = False
        self._fetchers.remove_fetcher_for_partitions(partitions)
        for partition in partitions:
            self._replica_manager.complete_all_delayed_requests(partition)
        self._on_offline(partitions)

    async def _notify_controller(self) -> None:
        """Creates the znode that makes the controller check our replicas; retries until it exists,
        as a second one does no harm."""
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
                logger.warning(
                    "Failed to notify the controller of replicas that are offline, retrying: %s",
                    error,
                )
            await asyncio.sleep(_RETRY_SECONDS)
