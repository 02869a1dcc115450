"""The exceptions of storage, with offsets and sizes as attributes.

Errors in the bytes of a batch (corrupt, too large, invalid timestamp, codec) are those of
`ottla.protocol.records.errors` and are raised unchanged. The errors here are about the log, its
producers and its disk. Storage knows no error codes: the broker maps both families to Kafka's.
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of all exceptions that storage defines."""


class OffsetOutOfRange(StorageError):
    """A read, or a new log start offset, outside the offsets of the log."""

    def __init__(self, name: str, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{name}: offset {offset} is out of range, the log has {log_start_offset} to"
            f" {log_end_offset}"
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class OffsetInRemoteStorage(OffsetOutOfRange):
    """A read below the local log start offset: its records are in remote storage only."""


class UnexpectedAppendOffset(StorageError):
    """Batches from the leader overlap the log of the follower."""

    def __init__(self, name: str, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{name}: batches with offsets {first_offset} to {last_offset} do not continue the log,"
            f" which ends at {log_end_offset}"
        )
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_end_offset = log_end_offset


class OffsetsOutOfOrder(StorageError):
    """The offsets of the batches of one append are not ascending."""


class BatchTooLargeForSegment(StorageError):
    """An append is larger than a segment may be (`segment.bytes`)."""

    def __init__(self, name: str, size: int, segment_bytes: int) -> None:
        super().__init__(
            f"{name}: an append of {size} bytes is larger than segment.bytes={segment_bytes}"
        )
        self.size = size
        self.segment_bytes = segment_bytes


class ProducerError(StorageError):
    """Base of the errors that concern one producer, `producer_id`."""

    def __init__(self, message: str, producer_id: int) -> None:
        super().__init__(message)
        self.producer_id = producer_id


class OutOfOrderSequence(ProducerError):
    """A gap in the sequence numbers of a producer."""


class InvalidProducerEpoch(ProducerError):
    """The producer epoch is older than one that is in the log: the producer is fenced."""


class InvalidTransactionState(ProducerError):
    """A non-transactional batch inside a transaction, or an unverified transactional batch."""


class TransactionCoordinatorFenced(ProducerError):
    """A transaction marker with a stale coordinator epoch."""


class CorruptFile(StorageError):
    """A file other than a log (checkpoint, snapshot, properties) is corrupt."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptIndex(CorruptFile):
    """An index does not match its log and must be rebuilt."""


class SegmentOffsetOverflow(StorageError):
    """An offset is more than 2**31 - 1 above the base offset of its segment."""

    def __init__(self, path: str, base_offset: int, offset: int) -> None:
        super().__init__(f"{path}: offset {offset} is too far from base offset {base_offset}")
        self.base_offset = base_offset
        self.offset = offset


class LogDirectoryOffline(StorageError):
    """A disk failed: all logs of the directory are offline until the broker is restarted."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"log dir {directory} is offline: {reason}")
        self.directory = directory
        self.reason = reason


class LogGone(LogDirectoryOffline):
    """Somebody has deleted or moved the directory of an open log, which is offline until the broker
    is restarted. `directory` is the log directory, whose other logs are not affected."""

    def __init__(self, directory: str, path: str) -> None:
        super().__init__(directory, f"{path} was deleted or moved")
        self.args = (self.reason,)


class DiskFull(StorageError):
    """No disk space for an append, which can be retried later.

    Nothing was written, or the flush after the write failed (`flush.messages`).
    """

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"log dir {directory} is full, appends are rejected: {reason}")
        self.directory = directory
        self.reason = reason


class ResourceExhausted(StorageError):
    """The process or the machine lacks descriptors or memory. Nothing changed; can be retried."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"log dir {directory} cannot be used at the moment: {reason}")
        self.directory = directory
        self.reason = reason


class LogClosed(StorageError):
    """The log was closed or deleted while it was in use."""


class DirectoryInUse(StorageError):
    """Another process has locked a log directory."""


class OverlappingDirectories(StorageError):
    """Two of the log directories are the same one, or one is inside another one."""


class InconsistentMetadata(StorageError):
    """meta.properties or partition.metadata name another broker, cluster or topic."""
