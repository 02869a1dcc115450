"""Reads of remote segments for fetches: bounded threads, a bounded number of reads that wait.

Mirrors `asyncRead` of Kafka's RemoteLogManager and RemoteLogReader. The event loop finds the
segments; a worker thread reads them. Loop only, but for the functions that run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.quotas.replication_quotas import UNLIMITED
from ottla.broker.remote.index_cache import MAX_CACHED_BYTES, CachedIndexes
from ottla.broker.remote.lineage import end_of_common_history
from ottla.broker.remote.memory_reads import MemoryReads
from ottla.broker.remote.remote_scans import RemoteScans
from ottla.broker.remote.segment_reader import (
    RemoteRead,
    TimestampSearch,
    aborted_transactions,
    read_segment,
)
from ottla.broker.remote.statistics import RemoteStatistics, TopicRemoteStatistics
from ottla.broker.runtime.tasks import WorkerPoolClosed, spawn
from ottla.protocol.records.errors import RecordsError
from ottla.storage.errors import CorruptFile, StorageError
from ottla.storage.remote.remote_storage import (
    RemoteIndexType,
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.remote.remote_log_manager import RemoteLogManager
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.storage.files.open_files import FileSlice
    from ottla.storage.index.txn_index import AbortedTransaction
    from ottla.storage.log.log import Log
    from ottla.storage.remote.segments import (
        RemoteLogSegmentId,
        RemoteLogSegmentMetadata,
    )

logger = logging.getLogger("ottla.remote")

#: How long the same problem is not logged again: each client repeats its fetch several times a
#: second. And for how many segments that is remembered.
_LOG_INTERVAL_MS = 30_000
_MAX_PROBLEMS = 1_000


class ReadParams(NamedTuple):
    """What is read from one partition; the parameters of `Log.read`."""

    offset: int
    max_bytes: int
    up_to: int
    min_one_batch: bool
    read_committed: bool


class RemoteLogReadResult(NamedTuple):
    """Records as `Log.read` returned them when they were local, or an error."""

    records: bytes | memoryview | FileSlice = b""
    #: (producer id, first offset) of each; None unless they were requested.
    aborted_transactions: list[tuple[int, int]] | None = None
    error: Exception | None = None


class TooManyReadsError(RemoteStorageError):
    """`remote.log.reader.max.pending.tasks` reads wait for a thread. Can be retried."""


class RemoteReadTask:
    """A read that is waiting, running or done. Two fetches of the same records share it."""

    __slots__ = ("_task", "started", "users")

    def __init__(self, task: asyncio.Task[RemoteLogReadResult]) -> None:
        self._task = task
        #: Whether a thread works on it. It is not cancelled then: the next fetch uses its result.
        self.started = False
        self.users = 0

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def result(self) -> RemoteLogReadResult:
        """Of a read that is done."""
        return RemoteLogReadResult() if self._task.cancelled() else self._task.result()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back in a later turn of the event loop."""
        self._task.add_done_callback(lambda _: callback())

    def release(self) -> None:
        """A fetch does not wait for it any more. The last one cancels it, if no thread works on it:
        a thread cannot be interrupted, and what it reads helps the next fetch."""
        self.users -= 1
        if self.users <= 0 and not self.started:
            self._task.cancel()

    def cancel(self) -> None:
        """Ends it for all fetches."""
        self._task.cancel()


class RemoteLogReader:
    """Reads from all remote partitions of this broker."""

    def __init__(
        self,
        remote: RemoteLogManager,
        workers: WorkerPool,
        quota: ReplicationQuota,
        now_ms: Callable[[], int],
        *,
        threads: int = 10,
        max_pending_tasks: int = 100,
        index_cache_bytes: int = MAX_CACHED_BYTES,
        statistics: RemoteStatistics | None = None,
    ) -> None:
        """`workers` has `threads` threads; `quota` is that of
        `remote.log.manager.fetch.max.bytes.per.second`; `now_ms` is monotonic.

        In memory are at most `threads` reads with the bytes of a fetch each, the results that their
        fetches have not taken yet, one for each connection, and `index_cache_bytes`.
        """
        self.indexes = CachedIndexes(remote.storage, index_cache_bytes)
        self._memory = MemoryReads(self.indexes)
        self._scans = RemoteScans(remote.metadata, self._memory)
        self.workers = workers
        self.statistics = RemoteStatistics() if statistics is None else statistics
        self._remote = remote
        self._quota = quota
        self._now_ms = now_ms
        self._threads = threads
        self._max_reads = threads + max_pending_tasks
        self._reads: dict[tuple[int, int, ReadParams], RemoteReadTask] = {}
        self._searches = 0
        self._problems: dict[str, int] = {}
        # The segment of each log that was read ahead last.
        self._begun: dict[int, RemoteLogSegmentId] = {}
        self._is_failing = False

    @property
    def pending(self) -> int:
        """Reads and searches that run or wait for a thread."""
        return len(self._reads) + self._searches

    @property
    def idle_ratio(self) -> float:
        """The part of the threads that have nothing to read now."""
        return 1 - min(self.workers.accepted, self._threads) / self._threads

    def is_throttled(self) -> bool:
        """Whether the quota is exceeded, so that no read begins now."""
        quota = self._quota
        return quota.limit < UNLIMITED and quota.is_exceeded(self._now_ms())

    def read_in_memory(self, log: Log, params: ReadParams) -> RemoteLogReadResult | None:
        """What `read` returns, if that needs no thread; None also for an error.

        A scan finds most of its records here: a task and a delayed fetch would cost more than this.
        """
        begin, (offset, max_bytes, up_to, _, committed) = monotonic(), params
        continued = self._scans.read_on(log, offset, max_bytes, up_to, read_committed=committed)
        if continued is not None:
            scan, read = continued
            self._read_ahead(log, scan.segment, read.end_position)
            aborted: list[tuple[int, int]] | None = [] if committed else None
            return self._read_at_once(scan.statistics, begin, read, aborted)
        try:
            segment = self._remote.segment_at(log, offset)
            if segment is None:
                return None
            found = self._read_in_memory(log, segment, params)
        except (StorageError, OSError):
            return None  # `read` meets it again, and reports it
        if found is None or not found.has_batch:
            return None
        aborted = [] if committed else None
        if committed and found.records:
            known = self._memory.aborted(segment, offset, found.next_offset)
            if known is None:
                return None
            aborted = _sorted(known)
        self._read_ahead(log, segment, found.end_position)
        statistics = self.statistics.topic(log.topic)
        if found.records and _bound(log, segment, params) > segment.end_offset:
            self._scans.begin(log, segment, found, statistics, read_committed=committed)
        return self._read_at_once(statistics, begin, found, aborted)

    def _read_at_once(
        self,
        statistics: TopicRemoteStatistics,
        begin: float,
        read: RemoteRead,
        aborted: list[tuple[int, int]] | None,
    ) -> RemoteLogReadResult:
        statistics.reads += 1
        self.statistics.record_read_time(monotonic() - begin)
        result = RemoteLogReadResult(read.records, aborted)
        self._count(statistics, result)
        return result

    def read(self, log: Log, params: ReadParams) -> RemoteReadTask:
        """Begins a read, or joins the same one that another fetch began; `release` it afterwards.

        Raises TooManyReadsError.
        """
        key = (id(log), log.truncations, params)
        read = self._reads.get(key)
        if read is None or read.is_done:
            if self.pending >= self._max_reads:
                raise TooManyReadsError(f"{self.pending} reads of remote segments are pending")
            self.statistics.topic(log.topic).reads += 1
            # The task begins in a later turn of the loop, when `read` has its value.
            coroutine = self._run(key, log, params)
            read = RemoteReadTask(spawn(coroutine, name=f"remote-log-read-{log.name}"))
            self._reads[key] = read
            read.when_done(partial(self._ended, key, read))
        read.users += 1
        return read

    async def offset_for_timestamp(
        self, log: Log, timestamp: int, timeout_seconds: float
    ) -> tuple[int, int, int] | None:
        """As `Log.offset_for_timestamp`, of the records that are in remote storage only.

        Mirrors `findOffsetByTimestamp` of Kafka's RemoteLogManager. Raises RemoteStorageError, also
        after the timeout.
        """
        partition = self._remote.partition(log)
        if partition is None:
            return None
        if self.pending >= self._max_reads:
            raise TooManyReadsError(f"{self.pending} reads of remote segments are pending")
        segments = self._remote.metadata.cache(partition).snapshot()
        search = TimestampSearch(
            log.leader_epochs.entries,
            log.log_start_offset,
            min(log.local_log_start_offset, log.log_end_offset),
            timestamp,
        )
        self._searches += 1
        try:
            async with asyncio.timeout(timeout_seconds):
                for segment in await self.workers.run(search.segments, segments):
                    # Each in a function of its own: a search ends when its request has ended.
                    found = await self.workers.run(search.find, self.indexes, segment)
                    if found is not None:
                        return found
        except TimeoutError:
            raise RemoteStorageError(
                f"{log.name}: the search for timestamp {timestamp} in remote storage took too long"
            ) from None
        except WorkerPoolClosed:
            raise RemoteStorageError("the broker stops") from None
        except (StorageError, OSError, RecordsError) as error:
            self._log_failure(log, log.log_start_offset, error)
            if isinstance(error, RemoteStorageError):
                raise
            raise RemoteStorageError(str(error)) from error
        finally:
            self._searches -= 1
        return None

    def close(self) -> None:
        """Ends all reads; fetches that wait for them get no records. Threads end what they do."""
        for read in list(self._reads.values()):
            read.cancel()

    def _ended(self, key: tuple[int, int, ReadParams], read: RemoteReadTask) -> None:
        if self._reads.get(key) is read:
            del self._reads[key]

    async def _run(
        self, key: tuple[int, int, ReadParams], log: Log, params: ReadParams
    ) -> RemoteLogReadResult:
        statistics, begin = self.statistics.topic(log.topic), monotonic()
        try:
            result = await self._read(self._reads[key], log, params)
        except WorkerPoolClosed:
            return RemoteLogReadResult(error=RemoteStorageError("the broker stops"))
        except (StorageError, OSError) as error:
            statistics.read_errors += 1
            self._log_failure(log, params.offset, error)
            return RemoteLogReadResult(error=error)
        except Exception as error:
            statistics.read_errors += 1
            logger.exception("Unexpected error reading %s from remote storage", log.name)
            return RemoteLogReadResult(error=error)
        finally:
            self.statistics.record_read_time(monotonic() - begin)
        self._count(statistics, result)
        return result

    def _count(self, statistics: TopicRemoteStatistics, result: RemoteLogReadResult) -> None:
        size = len(result.records)
        statistics.read_bytes += size
        self._quota.record(size, self._now_ms())
        if self._is_failing and size:
            self._is_failing = False
            logger.info("Remote storage can be read again")

    async def _read(
        self, read: RemoteReadTask, log: Log, params: ReadParams
    ) -> RemoteLogReadResult:
        offset = params.offset
        while True:
            segment = self._remote.segment_at(log, offset)
            if segment is None:
                raise RemoteResourceNotFoundError(
                    f"{log.name}: no remote segment has offset {offset}, although the log starts at"
                    f" {log.log_start_offset} and is on the local disk from"
                    f" {log.local_log_start_offset} on"
                )
            wanted = params._replace(offset=offset)
            in_memory = self._read_in_memory(log, segment, wanted)
            if in_memory is None:
                wanted = wanted._replace(up_to=_bound(log, segment, wanted))
                begin = self._memory.position(segment, offset)
                in_memory = await self.workers.run(self._read_segment, read, segment, wanted, begin)
                if in_memory.records:
                    self._memory.remember(segment, in_memory)
            found = in_memory
            if found.has_batch:
                break
            # No batch at or above `offset` is in this segment: compaction removed them once.
            offset = max(offset, segment.end_offset + 1)
            if offset >= log.local_log_start_offset:
                return _read_local(log, params)
        self._read_ahead(log, segment, found.end_position)
        if not params.read_committed:
            return RemoteLogReadResult(found.records)
        if not found.records:
            return RemoteLogReadResult(b"", [])
        known = self._memory.aborted(segment, params.offset, found.next_offset)
        if known is not None:
            return RemoteLogReadResult(found.records, _sorted(known))
        aborted = await self._aborted(log, segment, params.offset, found.next_offset)
        return RemoteLogReadResult(found.records, aborted)

    def _read_in_memory(
        self, log: Log, segment: RemoteLogSegmentMetadata, params: ReadParams
    ) -> RemoteRead | None:
        offset, max_bytes, _, min_one_batch, _ = params
        up_to = _bound(log, segment, params)
        return self._memory.read(
            segment, offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch
        )

    def _read_segment(
        self,
        read: RemoteReadTask,
        segment: RemoteLogSegmentMetadata,
        params: ReadParams,
        begin: int | None,
    ) -> RemoteRead:
        read.started = True
        offset, max_bytes, up_to, min_one_batch, _ = params
        return read_segment(
            self.indexes,
            segment,
            offset,
            max_bytes,
            up_to=up_to,
            min_one_batch=min_one_batch,
            begin=begin,
        )

    def _read_ahead(self, log: Log, segment: RemoteLogSegmentMetadata, position: int) -> None:
        """Begins to read the next segment, if that is not further away than the storage reads ahead
        within a segment. A reader would otherwise wait there for several requests to the store."""
        ahead, following = self._remote.storage.read_ahead_bytes, segment.end_offset + 1
        if not ahead or segment.size_bytes - position > ahead:
            return
        if following >= log.local_log_start_offset:
            return
        metadata = self._remote.segment_at(log, following)
        if metadata is None or self._begun.get(id(log)) == metadata.segment_id:
            return
        if len(self._begun) >= _MAX_PROBLEMS:
            self._begun.clear()
        self._begun[id(log)] = metadata.segment_id
        spawn(self._begin(metadata), name=f"remote-log-read-ahead-{log.name}")

    async def _begin(self, segment: RemoteLogSegmentMetadata) -> None:
        # A reader meets the same error, which is logged then.
        with contextlib.suppress(WorkerPoolClosed, StorageError, OSError):
            await self.workers.run(self._read_begin, segment)

    def _read_begin(self, segment: RemoteLogSegmentMetadata) -> None:
        self.indexes.fetch_index(segment, RemoteIndexType.OFFSET)
        self.indexes.fetch_log_segment(segment, 0, 1)
        self.indexes.fetch_index(segment, RemoteIndexType.TRANSACTION)

    async def _aborted(
        self, log: Log, segment: RemoteLogSegmentMetadata, offset: int, end: int
    ) -> list[tuple[int, int]]:
        """The aborted transactions that overlap [offset, end), as `Log.read` returns them.

        The marker of a transaction may be in a later segment, remote or local. That many segments
        are read as the transaction is long: a producer snapshot has no open one any more.

        Raises RemoteResourceNotFoundError when one of them is deleted meanwhile, by DeleteRecords:
        without its markers what was aborted passes for committed.
        """
        found: list[AbortedTransaction] = []
        while True:
            more, is_complete = await self.workers.run(self._aborted_in, segment, offset, end)
            found += more
            if is_complete:
                return _sorted(found)
            following = segment.end_offset + 1
            if following >= log.local_log_start_offset:
                break
            next_segment = self._remote.segment_at(log, following)
            if next_segment is None:
                raise RemoteResourceNotFoundError(
                    f"{log.name}: the remote segment of offset {following} is deleted, its aborted"
                    " transactions are not known"
                )
            segment = next_segment
        found += log.aborted_transactions(offset, end)
        return _sorted(found)

    def _aborted_in(
        self, segment: RemoteLogSegmentMetadata, offset: int, end: int
    ) -> tuple[list[AbortedTransaction], bool]:
        found, is_complete = aborted_transactions(self.indexes, [segment], offset, end)
        if not is_complete:
            open_offset = self.indexes.first_open_offset(segment)
            is_complete = open_offset is None or open_offset >= end
        return found, is_complete

    def _log_failure(self, log: Log, offset: int, error: Exception) -> None:
        """One line for a store that is away, and one for each object that is missing or corrupt."""
        of_object = isinstance(
            error, RemoteObjectCorruptError | RemoteResourceNotFoundError | CorruptFile
        )
        problem = f"{log.name} {type(error).__name__}" if of_object else ""
        if not of_object:
            self._is_failing = True
        now_ms = self._now_ms()
        if len(self._problems) >= _MAX_PROBLEMS:
            self._problems.clear()
        if now_ms - self._problems.get(problem, -_LOG_INTERVAL_MS) < _LOG_INTERVAL_MS:
            return
        self._problems[problem] = now_ms
        logger.error(
            "Cannot read offset %d of partition %s-%d from remote storage, clients retry: %s",
            offset,
            log.topic,
            log.partition,
            error,
            extra={"topic": log.topic, "partition": log.partition},
        )


def _bound(log: Log, segment: RemoteLogSegmentMetadata, params: ReadParams) -> int:
    """The offset up to which the segment has records of this log's history, and of the request."""
    history = log.leader_epochs.entries
    end = end_of_common_history(segment, history, log.log_end_offset, params.offset)
    return min(params.up_to, end)


def _read_local(log: Log, params: ReadParams) -> RemoteLogReadResult:
    """What follows the remote segments, when there is nothing at or above the offset in them."""
    start = max(params.offset, log.local_log_start_offset)
    if start >= params.up_to:
        return RemoteLogReadResult(b"", [] if params.read_committed else None)
    read = log.read(
        start,
        params.max_bytes,
        up_to=params.up_to,
        min_one_batch=params.min_one_batch,
        read_committed=params.read_committed,
    )
    aborted = read.aborted_transactions if params.read_committed else None
    return RemoteLogReadResult(b"" if read.slice is None else read.slice, aborted)


def _sorted(found: list[AbortedTransaction]) -> list[tuple[int, int]]:
    pairs = {(each.producer_id, each.first_offset) for each in found}
    return sorted(pairs, key=lambda pair: pair[1])
