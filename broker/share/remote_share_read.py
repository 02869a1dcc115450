"""The read of remote storage for a ShareFetch: one partition of a request, as of a Fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.remote.remote_log_reader import ReadParams, TooManyReadsError
from ottla.broker.replication.delayed_fetch import read_bound
from ottla.broker.share.log_reader import MAX_PARTITION_BYTES, Fetched, fetched_of, isolation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.files.open_files import FileSlice

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_reader import RemoteLogReader, RemoteReadTask
    from ottla.storage.log.log import Log


def is_remote(log: Log, offset: int) -> bool:
    """Whether the records at `offset` are in remote storage only."""
    return log.log_start_offset <= offset < log.local_log_start_offset


class RemoteShareRead:
    """Loop only. The records of other remote partitions come with later requests."""

    __slots__ = ("_error", "_log", "_offset", "_on_done", "_read", "_truncations")

    def __init__(self, on_done: Callable[[], object]) -> None:
        """`on_done` is called in a later turn of the event loop."""
        self._on_done = on_done
        self._log: Log | None = None
        self._offset = self._truncations = -1
        self._read: RemoteReadTask | None = None
        self._error: TooManyReadsError | None = None

    def is_ready(
        self, reader: RemoteLogReader, log: Log, offset: int, max_bytes: int, committed: bool
    ) -> bool:
        """Whether `take` has records or an error. Begins to read if nothing is read yet.

        Nothing begins while `remote.log.manager.fetch.max.bytes.per.second` is exceeded.
        """
        if self._log is None and not reader.is_throttled():
            self._log, self._offset, self._truncations = log, offset, log.truncations
            bound = read_bound(log, isolation(committed))
            max_bytes = min(max_bytes, MAX_PARTITION_BYTES)
            try:
                self._read = reader.read(log, ReadParams(offset, max_bytes, bound, True, committed))
            except TooManyReadsError as error:
                self._error = error
            else:
                self._read.when_done(self._on_done)
        if self._log is not log:
            return False
        return self._error is not None or (self._read is not None and self._read.is_done)

    def take(self, log: Log, offset: int, most_records: int) -> Fetched | None:
        """What was read of this partition at this offset; None if nothing was.

        Raises KafkaError, which clients retry.
        """
        if self._log is not log or self._truncations != log.truncations:
            return None
        if self._error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self._error))
        if self._offset != offset or self._read is None or not self._read.is_done:
            return None  # other members have acquired these records meanwhile, or it takes longer
        result = self._read.result()
        if result.error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(result.error))
        records = result.records
        # What follows the remote segments is on the disk.
        content = records.read() if isinstance(records, FileSlice) else bytes(records)
        if not content:
            return None
        return fetched_of(content, offset, result.aborted_transactions, most_records)

    def release(self) -> None:
        """The response is sent: its records are not kept."""
        read, self._read, self._log = self._read, None, None
        if read is not None:
            read.release()
