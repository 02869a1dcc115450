"""The transactional ids of one partition of `__transaction_state`."""

import logging
from collections.abc import Iterator

from ottla.broker.transactions.records import UnreadableRecord, read_key, read_value
from ottla.broker.transactions.state import Transaction, TransactionValue
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry

logger = logging.getLogger("ottla.transactions")

_MAX_SKIPPED_LOGGED = 10  # log lines about skipped records in one load


class TransactionPartition:
    """The transactional ids of one partition while this broker leads it."""

    __slots__ = ("index", "leader_epoch", "records_skipped", "transactions")

    def __init__(self, index: int, leader_epoch: int) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.records_skipped = 0
        self.transactions: dict[str, Transaction] = {}

    def replay(self, transactional_id: str, value: TransactionValue | None) -> None:
        """Replays a record, after an append and while loading; None is a tombstone."""
        if value is None:
            self.transactions.pop(transactional_id, None)
            return
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            self.transactions[transactional_id] = Transaction(transactional_id, value)
        else:
            transaction.replay(value)

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        for chunk in chunks:
            data = bytes(chunk)
            try:
                for position, header in iterate_entries(data):
                    for record in read_entry(data, position, header, check_crc=False):
                        self._replay_record(record.key, record.value)
            except RecordsError as problem:
                self._skip(f"a batch is corrupt: {problem}")
            yield

    def _replay_record(self, key: bytes | None, value: bytes | None) -> None:
        try:
            transactional_id = None if key is None else read_key(key)
            if transactional_id is None:
                self._skip(f"unknown key {key!r}")
            elif value is None:
                self.replay(transactional_id, None)
            else:
                self.replay(transactional_id, read_value(transactional_id, value))
        except UnreadableRecord as problem:
            self._skip(str(problem))

    def _skip(self, problem: str) -> None:
        self.records_skipped += 1
        if self.records_skipped <= _MAX_SKIPPED_LOGGED:
            logger.warning(
                "Loading transaction metadata from __transaction_state-%d: skipping a record: %s",
                self.index,
                problem,
                extra={"topic": "__transaction_state", "partition": self.index},
            )

    @property
    def is_empty(self) -> bool:
        return not self.transactions and not self.records_skipped

    def describe(self) -> str:
        skipped = f", {self.records_skipped} unreadable records" if self.records_skipped else ""
        return f"{len(self.transactions)} transactional ids{skipped}"
