"""The records of `__transaction_state`, in the format of Kafka 3.9 and 4.

Keys have version 0. Values have version 0 unless the feature `transaction.version` is finalized at
1 or above, or the transaction is that of a client of version 2: then version 1, whose tagged fields
have the producer ids before and after. Kafka 3.5 and later read both, and so do the last fixes of
3.0 to 3.4 (KIP-915).
"""

import struct

from ottla.broker.coordination.stored_records import UnreadableRecord
from ottla.broker.transactions.state import (
    NO_PRODUCER_EPOCH,
    TRANSACTION_VERSION_1,
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


def transaction_value(value: TransactionValue, level: int = 0) -> bytes:
    """`level` is the finalized `transaction.version`."""
    version = int(level >= TRANSACTION_VERSION_1 or value.is_raising)
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
        previous_producer_id=value.last_producer_id,
        next_producer_id=value.next_producer_id,
        client_transaction_version=value.client_version,
    )
    body: bytes = encoder(TransactionLogValue, version)(stored)
    return _SHORT.pack(version) + body


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
        stored.previous_producer_id,
        NO_PRODUCER_EPOCH,
        stored.next_producer_id,
        stored.client_transaction_version,
    )
