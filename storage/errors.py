"""The exceptions of storage, in plain words, with the offsets and sizes as attributes.

What is wrong with the bytes of a batch (damaged, too large, bad timestamp, codec) is raised by
`ottla.protocol.records.errors` and passes through unchanged. Everything below is about the log, the
producer that writes to it, or the disk under it. The broker maps both families to Kafka's codes in
one place; nothing here knows a code.
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of everything storage raises on its own account."""


class OffsetOutOfRange(StorageError):
    """A read, or a new log start, at an offset the log does not hold."""

    def __init__(self, name: str, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{name} has offsets {log_start_offset} to {log_end_offset}, {offset} was asked for"
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class UnexpectedAppendOffset(StorageError):
    """A follower was given batches that do not continue its log."""

    def __init__(self, name: str, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{name} ends at {log_end_offset}; batches with offsets {first_offset} to {last_offset}"
            " do not continue it"
        )
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_end_offset = log_end_offset


class OffsetsOutOfOrder(StorageError):
    """The batches of one append have offsets that do not ascend."""


class BatchTooLargeForSegment(StorageError):
    """An append is larger than a whole segment may be (`segment.bytes`)."""

    def __init__(self, name: str, size: int, segment_bytes: int) -> None:
        super().__init__(
            f"an append of {size} bytes to {name} is larger than a segment ({segment_bytes} bytes)"
        )
        self.size = size
        self.segment_bytes = segment_bytes


class ProducerError(StorageError):
    """Base of the refusals that concern one producer id; `producer_id` says which."""

    def __init__(self, message: str, producer_id: int) -> None:
        super().__init__(message)
        self.producer_id = producer_id


class OutOfOrderSequence(ProducerError):
    """A gap in the sequence numbers of a producer."""


class InvalidProducerEpoch(ProducerError):
    """The producer's epoch is older than one seen in this log."""


class InvalidTransactionState(ProducerError):
    """A plain write inside a transaction, or a transactional write without a known transaction."""


class TransactionCoordinatorFenced(ProducerError):
    """A transaction marker from a coordinator that has been replaced."""


class CorruptFile(StorageError):
    """A file other than a log (checkpoint, snapshot, properties) cannot be understood."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CorruptIndex(CorruptFile):
    """An index does not fit its log and has to be built again."""


class SegmentOffsetOverflow(StorageError):
    """An offset is more than 2**31 - 1 above the base offset of its segment."""

    def __init__(self, path: str, base_offset: int, offset: int) -> None:
        super().__init__(f"{path}: offset {offset} is out of reach of base offset {base_offset}")
        self.base_offset = base_offset
        self.offset = offset


class LogDirectoryOffline(StorageError):
    """A disk failed; every log of that directory is out of service until the next start."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"log directory {directory} is offline: {reason}")
        self.directory = directory
        self.reason = reason


class DiskFull(StorageError):
    """No room for an append. Nothing was written; the same append can be tried again later."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"log directory {directory} takes no more records: {reason}")
        self.directory = directory
        self.reason = reason


class LogClosed(StorageError):
    """The log was closed or deleted while somebody still held it."""


class DirectoryInUse(StorageError):
    """Another process holds the lock of a log directory."""


class InconsistentMetadata(StorageError):
    """meta.properties or partition.metadata belong to another broker, cluster or topic."""
