"""Records of a share partition that are in remote storage only (KIP-405).

A share fetch cannot wait for a thread and hold records meanwhile. So the records at the next fetch
offset are read ahead of it, at most `MAX_PARTITION_BYTES` for a share partition, and the share
fetches that wait are completed when they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.remote.remote_log_reader import ReadParams
from ottla.broker.replication.delayed_fetch import read_bound
from ottla.broker.share.log_reader import MAX_PARTITION_BYTES, Fetched, isolation, whole_batches
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote.remote_storage import RemoteStorageError

if TYPE_CHECKING:
    from ottla.broker.remote.remote_log_reader import RemoteLogReader, RemoteReadTask
    from ottla.storage.log.log import Log


class RemoteRecords:
    """The read of one share partition; `when_done` is called when it has ended."""

    def __init__(self, reader: RemoteLogReader, when_done: Callable[[], object]) -> None:
        self._reader = reader
        self._when_done = when_done
        self._wanted: tuple[int, bool] | None = None
        self._read: RemoteReadTask | None = None

    def is_ready(self, log: Log, offset: int, is_read_committed: bool) -> bool:
        """Whether `take` has a result; begins to read if not. While the quota
        (`remote.log.manager.fetch.max.bytes.per.second`) is exceeded nothing begins."""
        if self._wanted != (offset, is_read_committed):
            self.close()
        if self._read is None and not self._reader.is_throttled():
            bound = read_bound(log, isolation(is_read_committed))
            params = ReadParams(offset, MAX_PARTITION_BYTES, bound, True, is_read_committed)
            try:
                self._read = self._reader.read(log, params)
            except RemoteStorageError as error:
                raise _failed(error) from error
            self._wanted = (offset, is_read_committed)
            self._read.when_done(self._when_done)
        return self._read is not None and self._read.is_done

    def take(self, log: Log, offset: int, is_read_committed: bool) -> Fetched | None:
        """Whole batches from the one with `offset` on, once; None until they are read. Raises
        KAFKA_STORAGE_ERROR, which share consumers retry."""
        if not self.is_ready(log, offset, is_read_committed) or self._read is None:
            return None
        result = self._read.result()
        self.close()
        if result.error is not None:
            raise _failed(result.error) from result.error
        found = result.records
        records = found.read() if isinstance(found, FileSlice) else bytes(found)
        aborted = list(result.aborted_transactions or ())
        return whole_batches(records, offset, aborted) if records else None

    def close(self) -> None:
        """Nothing waits for it any more."""
        if self._read is not None:
            self._read.release()
        self._read = self._wanted = None


def _failed(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
