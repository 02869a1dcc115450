"""One writing task on an executor: rows to partitions, partitions to the producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import INVALID_TOPIC_HINT
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import client_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import TOPIC_NAME
from pyspark_ottla.options.sink_options import SinkOptions
from pyspark_ottla.read.columns import Longs
from pyspark_ottla.write.decisions import Prepared, TaskResult, Write
from pyspark_ottla.write.encode import Rows, encode_rows
from pyspark_ottla.write.partitioning import Partitioner
from pyspark_ottla.write.producer_ids import kept_producer
from pyspark_ottla.write.producing import ProducerIdentity, TaskProducer
from pyspark_ottla.write.repeated_writes import check_target, target_of, write_again
from pyspark_ottla.write.transactional_ids import claimed_id
from pyspark_ottla.write.transactions import Transactions

RecordBatch = Any
Array = Any


class TaskWriter:
    """Writes the rows of one task; `partition_count` looks a topic up at its first row."""

    def __init__(
        self, options: SinkOptions, producer: TaskProducer, partition_count: Callable[[str], int]
    ) -> None:
        self._options = options
        self._producer = producer
        self._partition_count = partition_count
        self._counts: dict[str, int] = {}
        self._partitioner = Partitioner(options.client.batch_bytes)
        self._bytes_max = min(options.client.batch_bytes, options.client.request_bytes_max) or 1
        self.rows = 0

    def write(self, batch: RecordBatch) -> None:
        """Hands every row of the batch to the producer, in order within each partition."""
        # The first of two columns with the same name counts.
        columns = dict(zip(reversed(batch.schema.names), reversed(batch.columns), strict=True))
        stamps = columns.get("timestamp") if self._options.writes_timestamp else None
        key = _as_binary(columns.get("key"))
        value = _as_binary(columns["value"])
        rows = Rows(
            key if key is not None else pa.nulls(batch.num_rows, pa.binary()),
            value,
            columns.get("headers"),
            _timestamps(stamps, batch.num_rows),
            np.arange(self.rows, self.rows + batch.num_rows),
        )
        _check_headers(rows)
        for topic, chosen in self._by_topic(columns.get("topic"), rows):
            given = columns.get("partition")
            if chosen is not None:
                given = None if given is None else given.take(chosen)
            self._write_topic(topic, _take(rows, chosen), given)
        self.rows += batch.num_rows

    def _by_topic(self, column: Array, rows: Rows) -> Iterator[tuple[str, Array]]:
        """The topics of the rows, each with the indices of its rows (None for all of them)."""
        if self._options.topic is not None:
            yield self._options.topic, None
            return
        if column.null_count:
            first = int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise ConnectorError(
                errors.NULL_TOPIC_IN_DATA,
                f"The topic of row {rows.numbers[first]} of this task is null",
                "Set the option topic, or filter such rows out",
            )
        topics = pc.unique(column).to_pylist()
        for topic in topics:
            if TOPIC_NAME.fullmatch(topic) is None or topic in (".", ".."):
                first = int(np.flatnonzero(np.asarray(pc.equal(column, topic)))[0])
                raise ConnectorError(
                    errors.INVALID_TOPIC,
                    f"The topic of row {rows.numbers[first]} of this task is {topic[:300]!r}",
                    INVALID_TOPIC_HINT,
                )
            if len(topics) == 1:
                yield topic, None
            else:
                yield topic, pa.array(np.flatnonzero(np.asarray(pc.equal(column, topic))))

    def _write_topic(self, topic: str, rows: Rows, given: Array) -> None:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partition_count(topic)
        self._check_given(topic, given, rows)
        sizes = _lengths_or_zero(rows.key) + _lengths_or_zero(rows.value)
        chosen = self._partitioner.choose(topic, count, rows.key, given, sizes)
        self._check_partitions(topic, count, chosen, rows)
        order = np.argsort(chosen, kind="stable")
        partitions, starts = np.unique(chosen[order], return_index=True)
        bounds = np.append(starts, len(order))
        for number, begin, end in zip(partitions.tolist(), bounds[:-1], bounds[1:], strict=True):
            all_rows = end - begin == len(order)
            some = rows if all_rows else _take(rows, pa.array(order[begin:end]))
            for section in encode_rows(some, self._bytes_max):
                self._producer.add(TopicPartition(topic, number), section)

    @staticmethod
    def _check_given(topic: str, given: Array, rows: Rows) -> None:
        """As Java's ProducerRecord: null leaves the choice to the key, and -1 is no partition."""
        if given is None:
            return
        negative = np.flatnonzero(np.asarray(given.fill_null(0)) < 0)
        if negative.size:
            raise ConnectorError(
                errors.WRITE_FAILED,
                f"Row {rows.numbers[negative[0]]} of this task is for partition "
                f"{given[int(negative[0])]} of the topic {topic}",
                "Partitions count from 0; null leaves the choice to the key",
            )

    @staticmethod
    def _check_partitions(topic: str, count: int, chosen: Longs, rows: Rows) -> None:
        beyond = np.flatnonzero(chosen >= count)
        if beyond.size:
            raise ConnectorError(
                errors.WRITE_FAILED,
                f"Row {rows.numbers[beyond[0]]} of this task is for partition "
                f"{chosen[beyond[0]]} of the topic {topic}, which has {count}",
                "Partitions count from 0; null leaves the choice to the key",
            )


def _as_binary(column: Array) -> Array:
    return column if column is None or pa.types.is_binary(column.type) else column.cast(pa.binary())


def _lengths_or_zero(column: Array) -> Longs:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)


def _timestamps(column: Array, count: int) -> Longs:
    """Milliseconds, of timestamps or of whole numbers; rows without one get the time of now, as a
    producer gives it."""
    now = time.time_ns() // 1_000_000
    if column is None:
        return np.full(count, now, np.int64)
    if pa.types.is_integer(column.type):
        return np.asarray(column.fill_null(now)).astype(np.int64)
    micros = column.cast(pa.timestamp("us", "UTC")).view(pa.int64())
    return np.asarray(micros.fill_null(now * 1000)).astype(np.int64) // 1000


def _check_headers(rows: Rows) -> None:
    """As Java's RecordHeader, which takes no null for a key."""
    if rows.headers is None:
        return
    entries = rows.headers.flatten()
    keys = entries.field(0)
    if not entries.null_count and not keys.null_count:
        return
    wrong = np.asarray(pc.or_(entries.is_null(), keys.is_null()))
    entry = int(np.flatnonzero(wrong)[0])
    row = int(np.asarray(pc.list_parent_indices(rows.headers))[entry])
    raise ConnectorError(
        errors.WRITE_FAILED,
        f"A header of row {rows.numbers[row]} of this task has no key",
        "A header needs a key; its value may be null",
    )


def _take(rows: Rows, chosen: Array) -> Rows:
    if chosen is None:
        return rows
    index = np.asarray(chosen)
    return Rows(
        rows.key.take(chosen),
        rows.value.take(chosen),
        None if rows.headers is None else rows.headers.take(chosen),
        rows.timestamps[index],
        rows.numbers[index],
    )


def write_task(
    options: SinkOptions, batches: Iterator[RecordBatch], write: Write | None
) -> TaskResult:
    """Writes every row; returns when all are acknowledged. A task without rows opens nothing.

    `write` is given for exactly-once only: then the transaction is left open for the driver.
    Raises ConnectorError.
    """
    batches = _with_rows(batches)
    first = next(batches, None)
    if first is None:
        return TaskResult(0, 0, {})
    batches = chain([first], batches)
    client_options = options.client
    with client_of(client_options) as lookup, client_of(client_options) as sending:
        topics = KafkaCluster(lookup, client_options)
        cluster = KafkaCluster(sending, client_options)
        if write is not None:
            return _write_prepared(options, topics, cluster, batches, write)
        if not client_options.idempotent:
            producer = TaskProducer(cluster, client_options, ProducerIdentity())
            return _write_all(options, topics, producer, batches)
        with kept_producer(cluster, client_options) as (identity, sequences):
            producer = TaskProducer(cluster, client_options, identity, sequences=sequences)
            return _write_all(options, topics, producer, batches)


def _with_rows(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


def _write_all(
    options: SinkOptions,
    topics: KafkaCluster,
    producer: TaskProducer,
    batches: Iterator[RecordBatch],
) -> TaskResult:
    try:
        writer = TaskWriter(options, producer, topics.partition_count)
        for batch in batches:
            writer.write(batch)
        producer.finish()
    finally:
        producer.close()
    return TaskResult(writer.rows, producer.bytes_sent, producer.last_offsets)


def _write_prepared(
    options: SinkOptions,
    topics: KafkaCluster,
    cluster: KafkaCluster,
    batches: Iterator[RecordBatch],
    write: Write,
) -> TaskResult:
    """Writes in a transaction and leaves it open; drops the rows if the batch is decided.

    The target is compared before anything is written: the driver of another query with the same
    name may have transactions open under it.
    """
    assert options.topic is not None
    target = target_of(topics, options.topic)
    transactions = Transactions(cluster, options.client.transaction_timeout_ms)
    decision = transactions.decision(write.name, is_fenced=False)
    check_target(decision, write, target)
    if not write_again(decision, write):
        rows = sum(batch.num_rows for batch in batches)
        return TaskResult(rows, 0, {}, dropped=True, target=target)
    decided = -1 if decision is None else decision.batch_id
    with claimed_id(write.name, write.batch_id, decided) as identifier:
        prepared = transactions.begin(identifier)
        producer = TaskProducer(
            cluster,
            options.client,
            ProducerIdentity(prepared.producer_id, prepared.epoch, identifier),
            lambda partitions: transactions.add_partitions(prepared, partitions),
        )
        try:
            result = _write_all(options, topics, producer, batches)
        except BaseException:
            _abort_quietly(transactions, prepared)
            raise
    return result._replace(prepared=prepared, target=target)


def _abort_quietly(transactions: Transactions, prepared: Prepared) -> None:
    try:
        transactions.end(prepared, committed=False)
    except ConnectorError:
        return  # the driver or the timeout aborts it; the first error matters more
