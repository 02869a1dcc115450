"""Control batches: the markers that end transactions, as brokers write them into partitions.

The key of a control record is `version int16 | type int16`, the value of an end-transaction
marker `version int16 | coordinator_epoch int32`; more bytes may follow in later versions. Types
that are not known are kept apart, so that a reader can pass over them as Kafka's clients do.
"""

from struct import Struct
from typing import NamedTuple

from ottla.protocol.records.batch import NO_LEADER_EPOCH
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.errors import InvalidRecordError
from ottla.protocol.records.record import Record

ABORT = 0
COMMIT = 1

_KEY = Struct(">hh")
_END_TRANSACTION = Struct(">hi")


class EndTransactionMarker(NamedTuple):
    """`type` is ABORT or COMMIT; the epoch belongs to the transaction coordinator's partition."""

    type: int
    coordinator_epoch: int


def end_transaction_marker(
    *,
    committed: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The control batch that commits or aborts a producer's transaction in one partition."""
    key = _KEY.pack(0, COMMIT if committed else ABORT)
    value = _END_TRANSACTION.pack(0, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, None)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def control_type(key: bytes | None) -> int:
    """The type of a control record (ABORT, COMMIT, ...) from its key; it may be one not listed
    here.

    Raises InvalidRecordError when the key is too short or of a version below 0.
    """
    if key is None or len(key) < _KEY.size:
        raise InvalidRecordError("the key of a control record is shorter than 4 bytes")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"a control record has version {version}")
    return int(kind)


def read_end_transaction_marker(record: Record) -> EndTransactionMarker:
    """The marker in a control record. Raises InvalidRecordError when it is none."""
    kind = control_type(record.key)
    if kind not in (ABORT, COMMIT):
        raise InvalidRecordError(f"a control record of type {kind} does not end a transaction")
    value = record.value
    if value is None or len(value) < _END_TRANSACTION.size:
        raise InvalidRecordError("an end-transaction marker is shorter than 6 bytes")
    version, coordinator_epoch = _END_TRANSACTION.unpack_from(value)
    if version < 0:
        raise InvalidRecordError(f"an end-transaction marker has version {version}")
    return EndTransactionMarker(kind, coordinator_epoch)
