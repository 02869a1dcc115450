"""One writing task on an executor: rows to partitions, partitions to the producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import client_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import SinkOptions
from pyspark_ottla.read.columns import Longs
from pyspark_ottla.write.encode import Rows, encode_rows
from pyspark_ottla.write.partitioning import Partitioner
from pyspark_ottla.write.producing import ProducerIdentity, TaskProducer, init_idempotent
from pyspark_ottla.write.transactions import Marker, TaskTransaction, Written

RecordBatch = Any
Array = Any


class TaskResult(NamedTuple):
    """What a task reports to the driver. `repeated`: an earlier attempt had written it all."""

    rows: int
    bytes_sent: int
    last_offsets: dict[TopicPartition, int]
    repeated: bool = False


class Attempt(NamedTuple):
    """Which piece of which job this task is: the batch of the query, and the task's number."""

    job_id: str
    batch_id: int
    task: int


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
        self.written = Written(0, 0, 0)

    def write(self, batch: RecordBatch) -> None:
        """Hands every row of the batch to the producer, in order within each partition."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        key = _as_binary(columns.get("key"))
        value = _as_binary(columns["value"])
        rows = Rows(
            key if key is not None else pa.nulls(batch.num_rows, pa.binary()),
            value,
            columns.get("headers"),
            _timestamps(columns.get("timestamp"), batch.num_rows),
            np.arange(self.written.rows, self.written.rows + batch.num_rows),
        )
        for topic, chosen in self._by_topic(columns.get("topic"), rows):
            given = columns.get("partition")
            if chosen is not None:
                given = None if given is None else given.take(chosen)
            self._write_topic(topic, _take(rows, chosen), given)
        self.written = Written(
            self.written.rows + batch.num_rows,
            self.written.key_bytes + _total_bytes(rows.key),
            self.written.value_bytes + _total_bytes(rows.value),
        )

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
            if len(topics) == 1:
                yield topic, None
            else:
                yield topic, pa.array(np.flatnonzero(np.asarray(pc.equal(column, topic))))

    def _write_topic(self, topic: str, rows: Rows, given: Array) -> None:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partition_count(topic)
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


def _total_bytes(column: Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _timestamps(column: Array, count: int) -> Longs:
    """Milliseconds; rows without a timestamp get the time of now, as a producer gives it."""
    now = time.time_ns() // 1_000_000
    if column is None:
        return np.full(count, now, np.int64)
    micros = column.cast(pa.timestamp("us", "UTC")).view(pa.int64())
    return np.asarray(micros.fill_null(now * 1000)).astype(np.int64) // 1000


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
    options: SinkOptions, batches: Iterator[RecordBatch], attempt: Attempt | None
) -> TaskResult:
    """Writes every row; returns when all are acknowledged (exactly-once: committed).

    `attempt` is given for exactly-once only. Raises ConnectorError.
    """
    client_options = options.client
    with client_of(client_options) as lookup, client_of(client_options) as sending:
        topics = KafkaCluster(lookup, client_options)
        cluster = KafkaCluster(sending, client_options)
        if attempt is not None:
            return _write_exactly_once(options, topics, cluster, batches, attempt)
        identity = init_idempotent(cluster) if client_options.idempotent else ProducerIdentity()
        producer = TaskProducer(cluster, client_options, identity)
        try:
            writer = TaskWriter(options, producer, topics.partition_count)
            for batch in batches:
                writer.write(batch)
            producer.finish()
        finally:
            producer.close()
        return TaskResult(writer.written.rows, producer.bytes_sent, producer.last_offsets)


def _write_exactly_once(
    options: SinkOptions,
    topics: KafkaCluster,
    cluster: KafkaCluster,
    batches: Iterator[RecordBatch],
    attempt: Attempt,
) -> TaskResult:
    name = f"{options.transactional_id_prefix}-{attempt.job_id}-{attempt.task}"
    transaction = TaskTransaction(cluster, name, options.client.transaction_timeout_ms)
    transaction.begin()
    # Brokers take offsets of partitions that exist only; this one is where records go anyway.
    assert options.topic is not None
    place = TopicPartition(options.topic, 0)
    topics.partition_count(options.topic)
    marker = transaction.marker(place)
    if marker.next_batch > attempt.batch_id:
        return _check_repeated(batches, marker, attempt, name)
    producer = TaskProducer(
        cluster, options.client, transaction.identity, transaction.add_partitions
    )
    try:
        writer = TaskWriter(options, producer, topics.partition_count)
        for batch in batches:
            writer.write(batch)
        producer.finish()
    except BaseException:
        producer.close()
        _abort_quietly(transaction)
        raise
    transaction.set_marker(place, Marker(attempt.batch_id + 1, writer.written))
    transaction.end(committed=True)
    return TaskResult(writer.written.rows, producer.bytes_sent, producer.last_offsets)


def _abort_quietly(transaction: TaskTransaction) -> None:
    try:
        transaction.end(committed=False)
    except ConnectorError:
        return  # the broker aborts it when its timeout is over; the first error matters more


def _check_repeated(
    batches: Iterator[RecordBatch], marker: Marker, attempt: Attempt, name: str
) -> TaskResult:
    """The batch is written already: only looks whether these are the same rows."""
    found = Written(0, 0, 0)
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        key = _as_binary(columns.get("key"))
        found = Written(
            found.rows + batch.num_rows,
            found.key_bytes + (0 if key is None else _total_bytes(key)),
            found.value_bytes + _total_bytes(_as_binary(columns["value"])),
        )
    is_last = marker.next_batch == attempt.batch_id + 1
    if is_last and marker.written is not None and found != marker.written:
        raise ConnectorError(
            errors.TASK_COUNT_CHANGED,
            f"Task {attempt.task} of batch {attempt.batch_id} brings {found.rows} rows, but "
            f"{marker.written.rows} other rows were written for it before ({name})",
            "A repeated batch must have the same tasks with the same rows: keep the number of "
            "partitions, and leave out what is different in each run (rand, current_timestamp)",
        )
    return TaskResult(found.rows, 0, {}, repeated=True)
