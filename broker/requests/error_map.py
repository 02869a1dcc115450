"""Maps the exceptions of this broker to Kafka's error codes. The only place that does.

The table is searched along the class of the exception and its bases, so a subclass without a row
gets its base's code. An unexpected exception becomes UNKNOWN_SERVER_ERROR and is logged with its
traceback: it is a defect of this broker, not a client's mistake.
"""

from __future__ import annotations

import logging

from ottla.broker.runtime.log_limiter import LogLimiter
from ottla.controller.tree.store import ConnectionLost, InvalidPath, SessionExpired
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.records import errors as records
from ottla.storage import errors as storage
from ottla.storage.log.batch_scan import CorruptLog

logger = logging.getLogger("ottla.broker")

_CODES: dict[type[BaseException], int] = {
    records.CorruptRecordError: ErrorCode.CORRUPT_MESSAGE,
    records.InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    records.InvalidRecordError: ErrorCode.INVALID_RECORD,
    records.UnsupportedCompressionError: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    records.UnsupportedFormatError: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    records.RecordTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    records.RecordsError: ErrorCode.CORRUPT_MESSAGE,
    storage.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    storage.BatchTooLargeForSegment: ErrorCode.RECORD_LIST_TOO_LARGE,
    storage.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    storage.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    storage.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    storage.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    storage.LogDirectoryOffline: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.ResourceExhausted: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.LogClosed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    storage.CorruptFile: ErrorCode.KAFKA_STORAGE_ERROR,
    CorruptLog: ErrorCode.CORRUPT_MESSAGE,
    storage.SegmentOffsetOverflow: ErrorCode.KAFKA_STORAGE_ERROR,
    storage.InconsistentMetadata: ErrorCode.INCONSISTENT_TOPIC_ID,
    # Kafka's request waits for ZooKeeper, so its clients time out, and retry as after this code.
    ConnectionLost: ErrorCode.REQUEST_TIMED_OUT,
    SessionExpired: ErrorCode.REQUEST_TIMED_OUT,
    # As of Kafka; a client may call a group or a user so.
    InvalidPath: ErrorCode.UNKNOWN_SERVER_ERROR,
    ProtocolError: ErrorCode.INVALID_REQUEST,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
    TimeoutError: ErrorCode.REQUEST_TIMED_OUT,
}

_unwritten = LogLimiter()


def error_code(error: BaseException) -> int:
    """The code that the client gets for `error`; logs an unexpected one."""
    if isinstance(error, KafkaError):
        return error.code
    for cls in type(error).__mro__:
        code = _CODES.get(cls)
        if code is not None:
            if cls in (ConnectionLost, SessionExpired) and _unwritten.allows(str(error)):
                logger.warning("A request failed, the client gets REQUEST_TIMED_OUT: %s", error)
            return code
    logger.error(
        "Unexpected %s, the client gets UNKNOWN_SERVER_ERROR: %s",
        type(error).__name__,
        error,
        exc_info=error,
    )
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_message(error: BaseException) -> str | None:
    """The error message of the response, or None; never details of the implementation."""
    if isinstance(error, KafkaError):
        return error.message or None
    if any(cls in _CODES for cls in type(error).__mro__) and not isinstance(error, OSError):
        return str(error) or None
    return None
