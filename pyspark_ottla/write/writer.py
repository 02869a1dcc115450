"""The batch and streaming writers: Spark's calls, handed to `writing` on the executors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.job_files import PickledWithJobFiles
from pyspark_ottla.missing_packages import missing_package
from pyspark_ottla.options.sink_options import SinkOptions
from pyspark_ottla.read.schema import headers_type

if TYPE_CHECKING:
    from pyspark_ottla.write.writing import Attempt, TaskResult

logger = logging.getLogger("ottla.spark")

# Exists only for Python; an Arrow RecordBatch as far as Spark is concerned.
RecordBatch = Any

# Spark's names of what a streaming task belongs to. They are in no documentation, but the engine
# itself finds the batch by them, and no other way leads to them.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"

COLUMN_TYPES: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (headers_type(),),
    "timestamp": (TimestampType(),),
}


class TaskMessage(WriterCommitMessage):
    """What one task has written, for the driver."""

    def __init__(self, result: TaskResult, attempt: Attempt | None) -> None:
        self.result = result
        self.attempt = attempt


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises ConnectorError unless such rows can be written; other columns are ignored."""
    given = {field.name: field.dataType for field in schema.fields}
    for name, types in COLUMN_TYPES.items():
        if name in given and given[name].simpleString() not in {t.simpleString() for t in types}:
            expected = " or ".join(t.simpleString() for t in types)
            raise ConnectorError(
                errors.INVALID_SCHEMA,
                f"The column {name} to write has the type {given[name].simpleString()}",
                f"It must be {expected}; use CAST, to_json or struct to make it so",
            )
    if "value" not in given:
        raise ConnectorError(
            errors.INVALID_SCHEMA,
            f"The rows to write have no column value, only {', '.join(given) or 'none'}",
            "Select what is to be the record's value AS value",
        )
    if options.topic is None and ("topic" not in given or options.exactly_once):
        what = "exactly-once delivery" if options.exactly_once else "rows without a topic column"
        raise ConnectorError(
            errors.MISSING_OPTION, f"The option topic is not set, which {what} need", "Set it"
        )


def write_rows(
    options: SinkOptions, batches: Iterator[RecordBatch], attempt: Attempt | None
) -> TaskMessage:
    try:
        from pyspark_ottla.write.writing import write_task
    except ImportError as error:
        raise missing_package("writing", error) from None
    return TaskMessage(write_task(options, batches, attempt), attempt)


def log_totals(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    results = [message.result for message in messages if isinstance(message, TaskMessage)]
    logger.info(
        "%s: %d rows, %d bytes, %d tasks, of which %d were written by an earlier attempt",
        what,
        sum(result.rows for result in results),
        sum(result.bytes_sent for result in results),
        len(results),
        sum(result.repeated for result in results),
    )


def check_tasks(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Notices a batch that was repeated with fewer tasks: one too many has left its marker."""
    from ottla.protocol.topics import TopicPartition
    from pyspark_ottla.cluster.cluster import KafkaCluster
    from pyspark_ottla.cluster.connections import client_of
    from pyspark_ottla.write.transactions import TaskTransaction

    attempts = [m.attempt for m in messages if isinstance(m, TaskMessage) and m.attempt]
    if not attempts or options.topic is None:
        return
    job_id, batch_id, _ = attempts[0]
    beyond = max(attempt.task for attempt in attempts) + 1
    name = f"{options.transactional_id_prefix}-{job_id}-{beyond}"
    with client_of(options.client) as client:
        cluster = KafkaCluster(client, options.client)
        marker = TaskTransaction(cluster, name, 1).marker(TopicPartition(options.topic, 0))
    if marker.next_batch == batch_id + 1:
        raise ConnectorError(
            errors.TASK_COUNT_CHANGED,
            f"Batch {batch_id} was written by {beyond} tasks now, by more in an earlier attempt: "
            "some of its records are in the topic twice",
            "A repeated batch must have the same tasks; keep the number of partitions",
        )


class BatchWriter(PickledWithJobFiles, DataSourceArrowWriter):
    """Writes the rows of one job."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConnectorError(
                errors.UNSUPPORTED_SAVE_MODE,
                "Records in a topic cannot be overwritten",
                'Use .mode("append")',
            )
        check_sink_schema(schema, options)
        self._options = options
        # A task that Spark runs again must find the marker of the first attempt.
        self._job_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        attempt = None
        if self._options.exactly_once:
            attempt = self._attempt()
        return write_rows(self._options, iterator, attempt)

    def _attempt(self) -> Attempt:
        """This task of this job; in foreachBatch, of that batch, so that a repeated batch counts
        as the same job. There may be several writes in one batch: one to a topic."""
        from pyspark_ottla.write.writing import Attempt

        context = _task_context()
        if context.getLocalProperty(BATCH_ID_PROPERTY):
            attempt = stream_attempt()
            return attempt._replace(job_id=f"{attempt.job_id}-{self._options.topic}")
        return Attempt(self._job_id, 0, context.partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_totals(messages, "written")
        if self._options.exactly_once:
            check_tasks(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_totals(messages, "the job failed; these records are in the topics all the same")


def _task_context() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()


def stream_attempt() -> Attempt:
    """Query, batch and task of the current streaming task; Spark's API returns none of it."""
    from pyspark_ottla.write.writing import Attempt

    context = _task_context()
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context else None
    batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context else None
    if not query_id or not batch_id:
        raise ConnectorError(
            errors.EXACTLY_ONCE_UNAVAILABLE,
            "This Spark does not tell a task which query and batch it belongs to "
            f"({QUERY_ID_PROPERTY}, {BATCH_ID_PROPERTY})",
            "Set delivery to at-least-once",
        )
    return Attempt(query_id, int(batch_id), context.partitionId())
