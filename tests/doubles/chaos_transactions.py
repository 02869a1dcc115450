"""Transactional clients of a cluster in trouble: writers, and a reader of what is committed.

What they do goes into a `History`, the oracle of the simulation.
"""

from __future__ import annotations

import random
import time

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as ConsumedPartition

from tests.doubles.chaos_clients import CLIENT, Watcher
from tests.simulation.cluster.history import History, Transaction

TRANSACTIONS_TOPIC = "chaos-transactions"
TRANSACTION_PARTITIONS = 3
TRANSACTION_TIMEOUT_MS = 15_000
_CALL_SECONDS = 10.0
# Longer than any trouble: a call that may be repeated is, so that few ends remain unknown.
_END_SECONDS = 60.0
_ABORTED_SHARE = 0.25


class TransactionalWriter(Watcher):
    """Transactions over several partitions; a quarter of them are aborted."""

    def __init__(self, bootstrap: str, number: int, history: History) -> None:
        super().__init__()
        self.committed = 0
        self._bootstrap = bootstrap
        self._history = history
        self._name = f"transactional-{number}"
        self._random = random.Random(self._name)
        self._sent = 0
        self._producer: Producer | None = None
        history.sends_once(self._name)

    def _step(self) -> None:
        try:
            if self._producer is None:
                self._producer = self._start()
            self._transact(self._producer)
        except (KafkaException, BufferError):
            # What became of its transaction is not known. The next producer ends it.
            self._producer = None
            self._stopping.wait(0.5)

    def _start(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
                **CLIENT,
            }
        )
        producer.init_transactions(_CALL_SECONDS)
        return producer

    def _transact(self, producer: Producer) -> None:
        transaction = self._history.begin(self._name, TRANSACTIONS_TOPIC)
        producer.begin_transaction()
        for partition in range(TRANSACTION_PARTITIONS):
            count = self._random.randint(0, 3)
            values = [b"%s:%d" % (self._name.encode(), self._sent + each) for each in range(count)]
            self._sent += count
            transaction.wrote(partition, values)
            for value in values:
                producer.produce(TRANSACTIONS_TOPIC, value, partition=partition)
        self._end(producer, transaction, abort=self._random.random() < _ABORTED_SHARE)

    def _end(self, producer: Producer, transaction: Transaction, *, abort: bool) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                if abort:
                    producer.abort_transaction(_CALL_SECONDS)
                    transaction.aborted()
                else:
                    producer.commit_transaction(_CALL_SECONDS)
                    transaction.committed()
                    self.committed += 1
                return
            except KafkaException as failed:
                error = failed.args[0]
                if error.fatal() or time.monotonic() > deadline:
                    raise
                if error.txn_requires_abort():
                    abort = True
                elif not error.retriable():
                    raise


class CommittedReader(Watcher):
    """Reads the committed records of every partition from the start."""

    def __init__(self, bootstrap: str, history: History) -> None:
        super().__init__()
        self._history = history
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                **CLIENT,
            }
        )
        self._consumer.assign(
            [
                ConsumedPartition(TRANSACTIONS_TOPIC, each, 0)
                for each in range(TRANSACTION_PARTITIONS)
            ]
        )

    def _step(self) -> None:
        for message in self._consumer.consume(500, 0.2):
            error = message.error()
            if error is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self._history.consumed(
                    TRANSACTIONS_TOPIC, partition, offset, bytes(message.value() or b"")
                )
            elif error.code() == RdKafkaError._AUTO_OFFSET_RESET:
                self.complaints.append(f"the reader of transactions was lost: {error}")

    def _finish(self) -> None:
        self._consumer.close()
