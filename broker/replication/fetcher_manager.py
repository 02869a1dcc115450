"""Assigns partitions to fetchers: one for each leader and fetcher id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.broker.replication.fetcher import Fetcher, FetcherSettings
from ottla.broker.replication.partition import NO_LEADER, Partition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.replication.group_commit import GroupCommit
    from ottla.broker.replication.replica_manager import ReplicaManager

logger = logging.getLogger("ottla.replication")

_Key = tuple[int, int, str, int]


class FetcherManager:
    """Mirrors Kafka's `ReplicaFetcherManager`. Loop only."""

    def __init__(
        self,
        settings: FetcherSettings,
        replica_manager: ReplicaManager,
        group_commit: GroupCommit,
        metadata: MetadataCache,
        listener_name: str,
        now_ms: Callable[[], int],
        fetchers_per_leader: int = 1,
    ) -> None:
        """`listener_name` is the inter-broker listener."""
        self.settings = settings
        self._replica_manager = replica_manager
        self._group_commit = group_commit
        self._metadata = metadata
        self._listener_name = listener_name
        self._now_ms = now_ms
        self._fetchers_per_leader = fetchers_per_leader
        self._fetchers: dict[_Key, Fetcher] = {}
        # Where each partition was added: a broker has a fetcher for each leader, or several.
        self._fetcher_of: dict[object, Fetcher] = {}
        # Partitions with a leader that is not in the metadata cache yet.
        self._waiting: dict[object, Partition] = {}

    def resize(self, fetchers_per_leader: int) -> None:
        """`num.replica.fetchers` changed: partitions move to the fetchers that they have now."""
        if fetchers_per_leader == self._fetchers_per_leader:
            return
        self._fetchers_per_leader = fetchers_per_leader
        moved = [each for fetcher in self._fetchers.values() for each in fetcher.partitions()]
        self._take_out(moved)
        for partition in moved:
            self._place(partition)
        self._drop_idle()

    def add_fetcher_for_partitions(self, partitions: Iterable[Partition]) -> None:
        """Starts, or restarts, fetching these from their leaders."""
        changed = list(partitions)
        self._take_out(changed)
        for partition in changed:
            self._place(partition)
        self._drop_idle()

    def remove_fetcher_for_partitions(self, partitions: Iterable[Partition]) -> None:
        """Stops fetching these."""
        self._take_out(partitions)
        self._drop_idle()

    def metadata_changed(self) -> None:
        """Retries the leaders that were unknown, and reconnects to those with a new address."""
        waiting, self._waiting = self._waiting, {}
        moved = [
            partition
            for key, fetcher in self._fetchers.items()
            if not self._is_current(key)
            for partition in fetcher.partitions()
        ]
        self._take_out(moved)
        for partition in (*waiting.values(), *moved):
            if partition.log is not None and not partition.is_leader:
                self._place(partition)
        self._drop_idle()

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition that is fetched, in records (Kafka's MaxLag)."""
        return max((fetcher.max_lag for fetcher in self._fetchers.values()), default=0)

    def close(self) -> None:
        """Stops all fetchers."""
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._fetchers.clear()
        self._fetcher_of.clear()
        self._waiting.clear()

    def _is_current(self, key: _Key) -> bool:
        leader, _, host, port = key
        endpoint = self._metadata.snapshot.alive(leader, self._listener_name)
        return endpoint is None or (endpoint.host, endpoint.port) == (host, port)

    def _place(self, partition: Partition) -> None:
        leader = partition.leader_id
        if leader == NO_LEADER or partition.offline:
            return
        endpoint = self._metadata.snapshot.alive(leader, self._listener_name)
        if endpoint is None:
            self._waiting[partition.key] = partition
            return
        number = hash(partition.key) % self._fetchers_per_leader
        key = (leader, number, endpoint.host, endpoint.port)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = Fetcher(
                (endpoint.host, endpoint.port),
                self.settings,
                self._replica_manager,
                self._group_commit,
                self._now_ms,
            )
        fetcher.add(partition)
        self._fetcher_of[partition.key] = fetcher

    def _take_out(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            key = partition.key
            self._waiting.pop(key, None)
            fetcher = self._fetcher_of.pop(key, None)
            if fetcher is not None:
                fetcher.remove(key)

    def _drop_idle(self) -> None:
        for key, fetcher in list(self._fetchers.items()):
            if fetcher.is_idle:
                fetcher.stop()
                del self._fetchers[key]
