"""A Fetch request that waits for records in remote storage; mirrors Kafka's `DelayedRemoteFetch`.

One partition of a request is read from remote storage; the others have what is on the local disk.
The client fetches the remaining partitions of its session with its next requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.remote.remote_log_reader import ReadParams, TooManyReadsError
from ottla.broker.replication.delayed_fetch import read_bound
from ottla.broker.replication.partition import READ_COMMITTED
from ottla.broker.requests.error_map import error_code
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.storage.remote.remote_storage import RemoteStorageError

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_reader import RemoteLogReader, RemoteReadTask
    from ottla.broker.replication.delayed_fetch import FetchParams
    from ottla.broker.replication.fetch_sessions import FetchItem, FetchPosition, FetchResult
    from ottla.broker.replication.partition import Partition
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.protocol.messages.fetch import PartitionData
    from ottla.storage.log.log import Log

PartitionOf = Callable[[tuple[str | None, int]], "Partition | None"]


class _Wanted:
    """The partition of a request that is read from remote storage."""

    __slots__ = ("data", "key", "log", "params", "read_params")

    def __init__(
        self,
        params: FetchParams,
        key: tuple[str, int],
        log: Log,
        data: PartitionData,
        read_params: ReadParams,
    ) -> None:
        self.params = params
        self.key = key
        self.log = log
        self.data = data
        self.read_params = read_params


class DelayedRemoteFetch(DelayedOperation):
    """Completes when

    A. the partition was deleted, has another leader or is offline;
    B. the read of remote storage is done;
    C. `remote.fetch.max.wait.ms` have passed.

    Local records of the other partitions are those of the begin of the request. In case A and C the
    remote partition has no records and no error.
    """

    __slots__ = ("_callback", "_partition_of", "_read", "_truncations", "_wanted")

    def __init__(
        self,
        delay_ms: int,
        wanted: _Wanted,
        read: RemoteReadTask,
        partition_of: PartitionOf,
        callback: Callable[[], None],
    ) -> None:
        super().__init__(delay_ms)
        self._wanted = wanted
        self._read = read
        self._partition_of = partition_of
        self._callback = callback
        self._truncations = wanted.log.truncations

    def try_complete(self) -> bool:
        return (not self._is_readable() or self._read.is_done) and self.force_complete()

    def _is_readable(self) -> bool:
        partition, log = self._partition_of(self._wanted.key), self._wanted.log
        if partition is None or partition.log is not log or log.truncations != self._truncations:
            return False
        try:
            partition.log_for(-1, self._wanted.params.leader_only)
        except KafkaError:
            return False
        return True

    def on_complete(self) -> None:
        read = self._read
        if read.is_done and self._is_readable():
            _fill(self._wanted, read)
        read.release()
        self._callback()


class RemoteFetches:
    """The fetches of this broker that need remote storage. Loop only."""

    def __init__(
        self,
        reader: RemoteLogReader,
        timer: DelayQueue,
        max_wait_ms: Callable[[], int],
        partition_of: PartitionOf,
    ) -> None:
        """`max_wait_ms` returns `remote.fetch.max.wait.ms`."""
        self.reader = reader
        self.purgatory: Purgatory[DelayedRemoteFetch] = Purgatory("remote-fetch", timer)
        self._max_wait_ms = max_wait_ms
        self._partition_of = partition_of
        # Of the current request: nothing awaits between `moved` and `start`.
        self._wanted: _Wanted | None = None

    def moved(
        self, params: FetchParams, item: FetchItem, data: PartitionData, left: int, is_first: bool
    ) -> int | None:
        """The records at the position of `item` are in remote storage only.

        Returns how many bytes of the response are reserved for them, or None if the response is not
        delayed for them: it has an error for a follower, which begins at another offset. The first
        such partition of a consumer is read by `start`. The others have no records in this
        response, like all of them while the quota is exceeded.
        """
        topic, _, position = item
        if params.is_follower:
            data.error_code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
            data.last_stable_offset = -1
            return None
        wanted = self._wanted
        if (wanted is not None and wanted.params is params) or self.reader.is_throttled():
            return 0
        partition = self._partition_of((topic, position.partition))
        assert topic is not None
        assert partition is not None
        assert partition.log is not None
        log, max_bytes = partition.log, min(position.partition_max_bytes, left)
        read_params = ReadParams(
            position.fetch_offset,
            max_bytes,
            read_bound(log, params.isolation),
            is_first and not params.hard_limit,
            params.isolation == READ_COMMITTED,
        )
        self._wanted = _Wanted(params, (topic, position.partition), log, data, read_params)
        return max_bytes

    def start(
        self,
        params: FetchParams,
        results: list[FetchResult],
        callback: Callable[[list[FetchResult]], None],
    ) -> bool:
        """Reads what `moved` found for this request and calls back. False if it found nothing."""
        wanted, self._wanted = self._wanted, None
        if wanted is None or wanted.params is not params:
            return False
        try:
            read = self.reader.read(wanted.log, wanted.read_params)
        except TooManyReadsError as error:
            _set_error(wanted.data, error)
            callback(results)
            return True
        operation = DelayedRemoteFetch(
            *(self._max_wait_ms(), wanted, read, self._partition_of),
            lambda: callback(results),
        )
        if not self.purgatory.try_complete_else_watch(operation, [wanted.key]):
            read.when_done(operation.try_complete)
        return True

    async def offset_for_timestamp(self, log: Log, timestamp: int) -> tuple[int, int, int] | None:
        """As `Log.offset_for_timestamp`, of the records that are in remote storage only.

        Raises KafkaError, which clients retry.
        """
        try:
            return await self.reader.offset_for_timestamp(log, timestamp)
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def local_items(self, items: list[FetchItem]) -> list[FetchItem]:
        """The items that wait for appends: a throttled read of remote storage does not."""
        return [item for item in items if not self._is_remote(item[0], item[2])]

    def _is_remote(self, topic: str | None, position: FetchPosition) -> bool:
        partition = self._partition_of((topic, position.partition))
        log = None if partition is None else partition.log
        return log is not None and (
            log.log_start_offset <= position.fetch_offset < log.local_log_start_offset
        )


def _fill(wanted: _Wanted, read: RemoteReadTask) -> None:
    data, result = wanted.data, read.result()
    if result.error is not None:
        _set_error(data, result.error)
        return
    data.records = result.records
    if result.aborted_transactions is not None:
        data.aborted_transactions = [
            AbortedTransaction(*each) for each in result.aborted_transactions
        ]


def _set_error(data: PartitionData, error: Exception) -> None:
    """A remote storage that fails is like a disk that fails: clients retry."""
    is_remote = isinstance(error, RemoteStorageError)
    data.error_code = ErrorCode.KAFKA_STORAGE_ERROR if is_remote else error_code(error)
    data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    data.records = b""
