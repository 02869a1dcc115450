"""A Fetch request that waits for records in remote storage; mirrors Kafka's `DelayedRemoteFetch`.

One partition of a request is read from remote storage; the others have what is on the local disk.
The client fetches the remaining partitions of its session with its next requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.purgatory.purgatory import Purgatory
from ottla.broker.remote.remote_log_reader import ReadParams, TooManyReadsError
from ottla.broker.replication.delayed_fetch import read_bound
from ottla.broker.replication.partition import READ_COMMITTED
from ottla.broker.requests.error_responses import error_code
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.storage.errors import CorruptFile
from ottla.storage.remote.remote_storage import RemoteStorageError

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_reader import (
        RemoteLogReader,
        RemoteLogReadResult,
        RemoteReadTask,
    )
    from ottla.broker.replication.delayed_fetch import FetchParams
    from ottla.broker.replication.fetch_sessions import FetchItem
    from ottla.broker.replication.partition import Partition
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.protocol.messages.fetch import PartitionData
    from ottla.storage.log.log import Log

PartitionOf = Callable[[tuple[str | None, int]], "Partition | None"]


class RemoteStorageFetch(NamedTuple):
    """The partition of a request that is read from remote storage, and its part of the response.

    Mirrors Kafka's RemoteStorageFetchInfo.
    """

    key: tuple[str, int]
    log: Log
    data: PartitionData
    read_params: ReadParams
    leader_only: bool


class DelayedRemoteFetch(DelayedOperation):
    """Completes when

    A. the partition was deleted, has another leader or is offline;
    B. the read of remote storage is done;
    C. `remote.fetch.max.wait.ms` have passed.

    Local records of the other partitions are those of the begin of the request. In case A and C the
    remote partition has no records and no error.
    """

    __slots__ = ("_callback", "_fetch", "_partition_of", "_read", "_truncations")

    def __init__(
        self,
        delay_ms: int,
        fetch: RemoteStorageFetch,
        read: RemoteReadTask,
        partition_of: PartitionOf,
        callback: Callable[[], None],
    ) -> None:
        super().__init__(delay_ms)
        self._fetch: RemoteStorageFetch | None = fetch
        self._read: RemoteReadTask | None = read
        self._partition_of = partition_of
        self._callback: Callable[[], None] | None = callback
        self._truncations = fetch.log.truncations

    def try_complete(self) -> bool:
        fetch, read = self._fetch, self._read
        if fetch is None or read is None:
            return False
        return (not self._is_readable(fetch) or read.is_done) and self.force_complete()

    def _is_readable(self, fetch: RemoteStorageFetch) -> bool:
        partition, log = self._partition_of(fetch.key), fetch.log
        if partition is None or partition.log is not log or log.truncations != self._truncations:
            return False
        try:
            partition.log_for(-1, fetch.leader_only)
        except KafkaError:
            return False
        return True

    def on_complete(self) -> None:
        fetch, read, callback = self._fetch, self._read, self._callback
        assert fetch is not None
        assert read is not None
        assert callback is not None
        # The purgatory keeps up to 1,000 completed operations: not with the records of each.
        self._fetch = self._read = self._callback = None
        if read.is_done and self._is_readable(fetch):
            _fill(fetch.data, read.result())
        read.release()
        callback()


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

    def moved(
        self,
        params: FetchParams,
        item: FetchItem,
        data: PartitionData,
        max_bytes: int,
        *,
        is_first: bool,
    ) -> RemoteStorageFetch | None:
        """What to read for a consumer: the records at the position of `item` are in remote storage
        only.

        None while the quota is exceeded: the partition has no records in this response then.
        """
        if self.reader.is_throttled():
            return None
        topic = item.topic
        partition = self._partition_of(item.key)
        assert topic is not None
        assert partition is not None
        assert partition.log is not None
        read_params = ReadParams(
            item.fetch_offset,
            max_bytes,
            read_bound(partition.log, params.isolation),
            is_first and not params.hard_limit,
            params.isolation == READ_COMMITTED,
        )
        return RemoteStorageFetch(
            (topic, item.partition), partition.log, data, read_params, params.leader_only
        )

    @staticmethod
    def tell_follower(data: PartitionData) -> None:
        """The records are in remote storage only: a follower begins at another offset."""
        data.error_code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
        data.last_stable_offset = -1

    def start(self, fetch: RemoteStorageFetch, callback: Callable[[], None]) -> None:
        """Read what `moved` returned, and call back when its response has it: now, if the read
        needs no thread."""
        found = self.reader.read_in_memory(fetch.log, fetch.read_params)
        if found is not None:
            _fill(fetch.data, found)
            callback()
            return
        try:
            read = self.reader.read(fetch.log, fetch.read_params)
        except TooManyReadsError as error:
            _set_error(fetch.data, error)
            callback()
            return
        operation = DelayedRemoteFetch(
            self._max_wait_ms(), fetch, read, self._partition_of, callback
        )
        if not self.purgatory.try_complete_else_watch(operation, [fetch.key]):
            read.when_done(operation.try_complete)

    async def offset_for_timestamp(
        self, log: Log, timestamp: int, timeout_seconds: float
    ) -> tuple[int, int, int] | None:
        """As `Log.offset_for_timestamp`, of the records that are in remote storage only.

        Raises KafkaError, which clients retry, also after the timeout.
        """
        try:
            return await self.reader.offset_for_timestamp(log, timestamp, timeout_seconds)
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def local_items(self, items: list[FetchItem]) -> list[FetchItem]:
        """The items that wait for appends: a throttled read of remote storage does not."""
        return [item for item in items if not self._is_remote(item)]

    def _is_remote(self, item: FetchItem) -> bool:
        partition = self._partition_of(item.key)
        log = None if partition is None else partition.log
        return log is not None and (
            log.log_start_offset <= item.fetch_offset < log.local_log_start_offset
        )


def _fill(data: PartitionData, result: RemoteLogReadResult) -> None:
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
    is_storage = isinstance(error, RemoteStorageError | CorruptFile | OSError)
    data.error_code = ErrorCode.KAFKA_STORAGE_ERROR if is_storage else error_code(error)
    data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    data.records = b""
