"""A ShareFetch that waits until records can be acquired; mirrors `DelayedShareFetch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.share.acquisition import AcquiredRecords, AcquireRequest
from ottla.broker.share.log_reader import RemoteShareRead, is_remote, read, readable_bytes
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.share.share_partitions import HostedPartition, SharePartitions


class ShareFetchParams(NamedTuple):
    """The parameters of a ShareFetch that hold for all its partitions."""

    group_id: str
    member_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    is_record_limit: bool


class ShareFetchItem(NamedTuple):
    """A partition to fetch from."""

    key: SharePartitionKey
    topic: str


class ShareFetchResult(NamedTuple):
    """The acquired records of one partition, or its error."""

    item: ShareFetchItem
    error_code: int
    error_message: str | None
    records: bytes
    acquired: list[AcquiredRecords]


class DelayedShareFetch(DelayedOperation):
    """Completes when

    A. a share partition cannot be found on this broker, so the response has an error;
    B. the share partitions have `min_bytes` of records that the member can acquire, or records of
       one are read from remote storage;
    C. `max_wait_ms` have passed.

    The records are acquired on completion, so a member never holds records while it waits, and
    none are acquired for a member that does not wait any more: they would stay locked.
    """

    __slots__ = (
        "_callback",
        "_clock",
        "_is_awaited",
        "_items",
        "_may_read",
        "_params",
        "_remote",
        "_shares",
    )

    def __init__(
        self,
        params: ShareFetchParams,
        items: list[ShareFetchItem],
        shares: SharePartitions,
        clock: Clock,
        is_awaited: Callable[[], bool],
        may_read: Callable[[str], bool],
        callback: Callable[[list[ShareFetchResult]], None],
    ) -> None:
        """`may_read` is asked for each topic on completion: an ACL may have changed meanwhile."""
        super().__init__(params.max_wait_ms)
        self._params = params
        self._may_read = may_read
        self._items = items
        self._shares = shares
        self._clock = clock
        self._is_awaited = is_awaited
        self._callback = callback
        self._remote = RemoteShareRead(self.try_complete)

    def try_complete(self) -> bool:
        if self.is_completed:
            return False
        if not self._is_awaited():
            # It must not let the share partitions be loaded again, which its group has left.
            return self.force_complete()
        needed = max(1, self._params.min_bytes)
        committed = self._shares.settings.is_read_committed(self._params.group_id)
        for key, topic in self._items:
            try:
                hosted = self._shares.find(key, topic)
                needed -= self._acquirable_bytes(hosted, needed, committed)
            except Exception:
                return self.force_complete()  # A
            if needed <= 0:
                return self.force_complete()  # B
        return False

    def _acquirable_bytes(self, hosted: HostedPartition, most: int, committed: bool) -> int:
        state = hosted.state
        if state is None:
            return 0
        log = hosted.partition.leader_log()
        state.window.advance_to(log.log_start_offset)
        if not state.can_acquire():
            return 0
        offset, reader = state.next_fetch_offset(), self._shares.remote_reader
        if reader is not None and is_remote(log, offset):
            max_bytes = self._params.max_bytes
            is_ready = self._remote.is_ready(reader, log, offset, max_bytes, committed)
            return most if is_ready else 0
        return readable_bytes(log, offset, most, committed)

    def on_complete(self) -> None:
        left_records, left_bytes = self._params.max_records, self._params.max_bytes
        results = []
        for item in self._items if self._is_awaited() else ():
            if not self._may_read(item.topic):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                results.append(ShareFetchResult(item, code, None, b"", []))
                continue
            try:
                records, acquired = self._fetch(item, left_records, left_bytes)
            except Exception as error:
                results.append(
                    ShareFetchResult(item, error_code(error), error_message(error), b"", [])
                )
                continue
            left_bytes -= len(records)
            left_records -= sum(last - first + 1 for first, last, _ in acquired)
            results.append(ShareFetchResult(item, ErrorCode.NONE, None, records, acquired))
        callback = self._callback
        # The purgatory keeps completed operations for a while: not with the records of each.
        self._remote.release()
        self._is_awaited, self._callback = lambda: False, lambda _: None
        self._may_read = lambda _: False
        callback(results)

    def _fetch(
        self, item: ShareFetchItem, max_records: int, max_bytes: int
    ) -> tuple[bytes, list[AcquiredRecords]]:
        hosted = self._shares.find(item.key, item.topic)
        state, params = hosted.state, self._params
        if state is None or max_records <= 0 or max_bytes <= 0:
            return b"", []
        state.limits = self._shares.settings.limits(params.group_id)
        log = hosted.partition.leader_log()
        state.window.advance_to(log.log_start_offset)
        if not state.can_acquire():
            return b"", []
        committed = self._shares.settings.is_read_committed(params.group_id)
        offset = state.next_fetch_offset()
        most_records = state.most_records(offset, max_records)
        if self._shares.remote_reader is not None and is_remote(log, offset):
            fetched = self._remote.take(log, offset, most_records)
        else:
            fetched = read(log, offset, max_bytes, committed, most_records)
        if fetched is None:
            return b"", []
        acquired = state.acquire(
            AcquireRequest(
                params.member_id,
                max_records,
                params.batch_size,
                params.is_record_limit,
                self._clock.now_ms(),
            ),
            offset,
            fetched.batches,
            fetched.aborted,
        )
        if not acquired:
            return b"", []
        self._shares.statistics.delivered(hosted.key, acquired)
        self._shares.schedule_locks(hosted)
        return fetched.of_acquired(acquired), acquired
