"""The transactional ids of one partition of `__transaction_state`."""

import logging
from collections.abc import Iterator

from ottla.broker.coordination.stored_records import StoredRecords, UnreadableRecord
from ottla.broker.transactions.records import read_key, read_value
from ottla.broker.transactions.state import Transaction, TransactionValue
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC

logger = logging.getLogger("ottla.transactions")


class TransactionPartition:
    """The transactional ids of one partition while this broker leads it."""

    __slots__ = ("index", "leader_epoch", "stored", "transactions")

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.stored = StoredRecords(TRANSACTION_STATE_TOPIC, index, "transaction metadata", logger)
        self.transactions: dict[str, Transaction] = {}

    def replay(self, transactional_id: str, value: TransactionValue | None) -> None:
        """Replay a record, after an append and while loading; None is a tombstone."""
        if value is None:
            self.transactions.pop(transactional_id, None)
            return
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            self.transactions[transactional_id] = Transaction(transactional_id, value)
        else:
            transaction.replay(value)

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        return self.stored.replay(chunks, self._replay_stored)

    def _replay_stored(self, record: Record) -> None:
        transactional_id = None if record.key is None else read_key(record.key)
        if transactional_id is None:
            raise UnreadableRecord(f"unknown key {record.key!r}")
        value = None if record.value is None else read_value(transactional_id, record.value)
        self.replay(transactional_id, value)

    @property
    def is_empty(self) -> bool:
        return not self.transactions and not self.stored.skipped

    def describe(self) -> str:
        return f"{len(self.transactions)} transactional ids{self.stored.describe()}"
