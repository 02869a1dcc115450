"""Which partitions of a follower's fetch session may have something new since they were read.

A follower fetches thousands of partitions at a time, most of which stay as they are. A watch is
registered for all of them once, not for each request, and learns what changed from the same calls
that complete delayed fetches. A request reads those partitions only. Kafka reads all of them.

Some changes are not reported, such as the log start offset after retention. So all partitions are
read again from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.protocol.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.replication.delayed_fetch import DelayedFetch
    from ottla.broker.replication.fetch_sessions import FetchItem, FetchSession, PartitionKey
    from ottla.broker.replication.partition import Partition

logger = logging.getLogger("ottla.replication")

# What is not reported reaches a follower after this time, at most.
MAX_SCAN_INTERVAL_MS = 5_000


class SessionWatch:
    """Of one session. `news` are the partitions that are read for the next response, in order:
    those that changed, and those that were not found settled when they were read last."""

    __slots__ = (
        "_is_scanned",
        "_partition_of",
        "_replica_epoch",
        "_replica_id",
        "_round_ms",
        "_scanned_ms",
        "by_key",
        "is_closed",
        "news",
        "waiting",
    )

    def __init__(
        self, partition_of: Callable[[PartitionKey], Partition | None], replica_id: int
    ) -> None:
        self.by_key: dict[PartitionKey, FetchItem] = {}
        self.news: dict[PartitionKey, None] = {}
        #: The fetch of the session that waits.
        self.waiting: DelayedFetch | None = None
        self.is_closed = False
        self._partition_of = partition_of
        self._replica_id = replica_id
        self._replica_epoch = -1
        self._is_scanned = False
        self._scanned_ms = 0
        self._round_ms = 0

    def begin(
        self, items: Iterable[FetchItem], replica_epoch: int, now_ms: int, interval_ms: int
    ) -> Iterable[FetchItem]:
        """A request arrives: return what it reads, all of `items` once in `interval_ms`."""
        is_known = self._is_scanned and self._replica_epoch == replica_epoch
        if is_known and now_ms - self._scanned_ms < interval_ms:
            self._round_ms = now_ms
            by_key = self.by_key
            return [by_key[key] for key in self.news]
        self._is_scanned = False
        self._replica_epoch = replica_epoch
        self._scanned_ms = self._round_ms = now_ms
        return items

    def end(self) -> None:
        """All that `begin` returned was read."""
        self._is_scanned = True

    def scan_next_time(self) -> None:
        """The next request reads all partitions."""
        self._is_scanned = False

    def close(self) -> None:
        """The partitions of the session change, or it ends: nothing is reported any more, so the
        fetch that waits is completed."""
        self.is_closed = True
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.force_complete()

    def changed(self, key: PartitionKey) -> None:
        """A partition may have something new."""
        news = self.news
        if key not in news:
            if self._is_scanned:
                self._record_progress(key)
            news[key] = None
        waiting = self.waiting
        if waiting is not None and not waiting.is_completed:
            try:
                waiting.try_complete_for(key)
            except Exception:
                logger.exception("The check of a delayed fetch failed")

    def _record_progress(self, key: PartitionKey) -> None:
        """The follower had all records at its last request, which did not read the partition."""
        partition = self._partition_of(key)
        follower = None if partition is None else partition.followers.get(self._replica_id)
        if follower is not None:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, self._round_ms)
            follower.last_fetch_ms = max(follower.last_fetch_ms, self._round_ms)


class SessionWatches:
    """All watches, by partition. Loop only."""

    def __init__(self, partition_of: Callable[[PartitionKey], Partition | None]) -> None:
        self._partition_of = partition_of
        # Of each partition as many as it has followers, and those of sessions that have ended.
        self.by_key: dict[PartitionKey, list[SessionWatch]] = {}

    def of(
        self, session: FetchSession, items: Iterable[FetchItem], replica_id: int
    ) -> Steps[SessionWatch | None]:
        """Return the watch of a session with these partitions. May pause between two partitions.

        A session whose partitions change closes its watch, and gets a new one here. None if another
        request of the session changes them meanwhile.
        """
        if session.watch is not None:
            return session.watch
        changes = session.changes
        watch = SessionWatch(self._partition_of, replica_id)
        by_key = self.by_key
        for item in items:
            watch.by_key[item.key] = item
            by_key[item.key] = [*self._open(item.key), watch]
            yield
        if session.changes != changes or session.watch is not None:
            watch.close()
            return None
        session.watch = watch
        return watch

    def changed(self, key: PartitionKey) -> None:
        """A partition may have something new for its followers."""
        has_closed = False
        for watch in self.by_key.get(key, ()):
            if watch.is_closed:
                has_closed = True
            else:
                watch.changed(key)
        if has_closed:
            self._drop_closed(key)

    def forget(self, key: PartitionKey) -> None:
        """A partition is gone; it may come back while the sessions have it."""
        self._drop_closed(key)
        for watch in self.by_key.get(key, ()):
            watch.scan_next_time()

    def _open(self, key: PartitionKey) -> list[SessionWatch]:
        return [each for each in self.by_key.get(key, ()) if not each.is_closed]

    def _drop_closed(self, key: PartitionKey) -> None:
        left = self._open(key)
        if left:
            self.by_key[key] = left
        else:
            self.by_key.pop(key, None)

    def scan_all(self) -> None:
        """The next request of each session reads all its partitions."""
        for watch in {id(each): each for of in self.by_key.values() for each in of}.values():
            watch.scan_next_time()
