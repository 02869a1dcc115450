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
    from ottla.broker.runtime.timer import DelayQueue

logger = logging.getLogger("ottla.replication")

# Changes that are not reported reach a follower after this time, or with its next request after it.
MAX_SCAN_INTERVAL_MS = 5_000

# Empty responses in a row after which the next requests wait twice as long as they ask for, then
# four and eight times: every second one reads all partitions then. A follower that gets a new
# partition of this leader begins with it after its wait; the leader ends that wait when it learns
# of the partition.
_SILENT_ROUNDS = 3
_MOST_DOUBLINGS = 3


class SessionWatch:
    """Of one session. `news` are the partitions that are read for the next response, in order:
    those that changed, and those that were not found settled when they were read last."""

    __slots__ = (
        "_is_scanned",
        "_is_void",
        "_partition_of",
        "_replica_epoch",
        "_replica_id",
        "_round_ms",
        "_scanned_ms",
        "_silent_rounds",
        "_timer",
        "_wait_ms",
        "by_key",
        "is_closed",
        "news",
        "waiting",
    )

    def __init__(
        self,
        partition_of: Callable[[PartitionKey], Partition | None],
        replica_id: int,
        timer: DelayQueue,
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
        self._is_void = False
        self._scanned_ms = 0
        self._round_ms = 0
        self._silent_rounds = 0
        self._timer = timer
        # How long the fetch that waits asked to wait, if it waits longer.
        self._wait_ms = 0

    def begin(
        self, items: Iterable[FetchItem], replica_epoch: int, now_ms: int, interval_ms: int
    ) -> Iterable[FetchItem]:
        """A request arrives: return what it reads, all of `items` once in `interval_ms`."""
        is_known = self._is_scanned and self._replica_epoch == replica_epoch
        if is_known and now_ms - self._scanned_ms < interval_ms:
            self._round_ms = now_ms
            by_key = self.by_key
            return [by_key[key] for key in self.news]
        self._is_scanned = self._is_void = False
        self._replica_epoch = replica_epoch
        self._scanned_ms = self._round_ms = now_ms
        return items

    def end(self) -> None:
        """All that `begin` returned was read. It is read again if `scan_next_time` was called
        meanwhile."""
        self._is_scanned = not self._is_void

    def wait_ms(self, asked_ms: int, most_ms: int) -> int:
        """Return for how many milliseconds a request without news waits; it asks for `asked_ms`.

        After several requests without news it is longer, up to `most_ms`. A change completes the
        waiting request, so followers get it without delay.
        """
        if self.news:
            self._silent_rounds = 0
        self._silent_rounds += 1
        # The silence may last for months: no power of two for each of its rounds.
        doublings = min(max(0, self._silent_rounds - _SILENT_ROUNDS), _MOST_DOUBLINGS)
        found = max(asked_ms, min(asked_ms << doublings, most_ms))
        self._wait_ms = asked_ms if found > asked_ms else 0
        return found

    def end_silence(self) -> None:
        """The fetch that waits, and the next ones, wait as long as they ask for."""
        self._silent_rounds = 0
        wait_ms, self._wait_ms = self._wait_ms, 0
        if wait_ms and self.waiting is not None:
            self._timer.schedule(wait_ms, self.waiting.expire)

    def scan_next_time(self) -> None:
        """The next request reads all partitions."""
        self._is_scanned = False
        self._is_void = True

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
        if self._wait_ms:
            self.end_silence()

    def _record_progress(self, key: PartitionKey) -> None:
        """The follower had all records at its last request, which did not read the partition."""
        partition = self._partition_of(key)
        follower = None if partition is None else partition.followers.get(self._replica_id)
        if follower is not None:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, self._round_ms)
            follower.last_fetch_ms = max(follower.last_fetch_ms, self._round_ms)


class SessionWatches:
    """All watches, by partition. Loop only."""

    def __init__(
        self, partition_of: Callable[[PartitionKey], Partition | None], timer: DelayQueue
    ) -> None:
        self._partition_of = partition_of
        self._timer = timer
        # Of each partition as many as it has followers, and those of sessions that have ended.
        self.by_key: dict[PartitionKey, list[SessionWatch]] = {}
        # The last one of each follower and each of its fetchers, by the session.
        self._all: dict[int, SessionWatch] = {}

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
        watch = SessionWatch(self._partition_of, replica_id, self._timer)
        by_key = self.by_key
        for item in items:
            watch.by_key[item.key] = item
            by_key[item.key] = [*self._open(item.key), watch]
            yield
        if session.changes != changes or session.watch is not None:
            watch.close()
            return None
        session.watch = watch
        for number in [number for number, each in self._all.items() if each.is_closed]:
            del self._all[number]
        self._all[session.session_id] = watch
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
        for watch in self._all.values():
            watch.scan_next_time()

    def end_silence(self) -> None:
        """Partitions get leaders and followers: a follower that begins with one must not wait long
        for another one."""
        for watch in self._all.values():
            watch.end_silence()
