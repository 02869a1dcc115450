"""The records of `__transaction_state`, in the format of Kafka 3.9.

Keys have version 0. Values are written with version 0, as Kafka does without the feature
`transaction.version`, which needs KRaft; version 1 can be read.
"""

import struct

from ottla.broker.coordination.stored_records import UnreadableRecord
from ottla.broker.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionState,
    TransactionValue,
)
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.stored.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from ottla.protocol.topics import TopicPartition

KEY_VERSION = 0
VALUE_VERSION = 0
MAX_VALUE_VERSION = 1

_SHORT = struct.Struct(">h")


def transaction_key(transactional_id: str) -> bytes:
    body: bytes = encoder(TransactionLogKey, KEY_VERSION)(TransactionLogKey(transactional_id))
    return _SHORT.pack(KEY_VERSION) + body


def read_key(key: bytes) -> str | None:
    """Return the transactional id; None for an unknown version."""
    try:
        if _SHORT.unpack_from(key)[0] != KEY_VERSION:
            return None
        return decoder(TransactionLogKey, KEY_VERSION)(key, 2)[0].transactional_id
    except (struct.error, ProtocolError) as problem:
        raise UnreadableRecord(f"the key {key[:64]!r} cannot be read: {problem}") from None


def transaction_value(value: TransactionValue) -> bytes:
    topics: dict[str, list[int]] = {}
    for partition in sorted(value.partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    stored = TransactionLogValue(
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.state,
        transaction_partitions=None
        if value.state is TransactionState.EMPTY
        else [PartitionsSchema(topic, indexes) for topic, indexes in topics.items()],
        transaction_last_update_timestamp_ms=value.update_timestamp_ms,
        transaction_start_timestamp_ms=value.start_timestamp_ms,
    )
    body: bytes = encoder(TransactionLogValue, VALUE_VERSION)(stored)
    return _SHORT.pack(VALUE_VERSION) + body


def read_value(transactional_id: str, data: bytes) -> TransactionValue:
    try:
        version = _SHORT.unpack_from(data)[0]
        if version < 0 or version > MAX_VALUE_VERSION:
            raise UnreadableRecord(
                f"transactional id {transactional_id} has the unknown version {version}"
            )
        stored, _ = decoder(TransactionLogValue, version)(data, 2)
        state = TransactionState(stored.transaction_status)
    except (struct.error, ProtocolError, ValueError) as problem:
        raise UnreadableRecord(
            f"transactional id {transactional_id} cannot be read: {problem}"
        ) from None
    return TransactionValue(
        state,
        stored.producer_id,
        stored.producer_epoch,
        stored.transaction_timeout_ms,
        frozenset(
            TopicPartition(topic.topic, index)
            for topic in stored.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        stored.transaction_start_timestamp_ms,
        stored.transaction_last_update_timestamp_ms,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
    )
