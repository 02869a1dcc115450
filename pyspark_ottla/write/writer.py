"""The batch and streaming writers: Spark's calls, handed to `writing` on the executors."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
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
from pyspark_ottla.task_process import prepare_process
from pyspark_ottla.warnings_on_stderr import spark_logger

if TYPE_CHECKING:
    from pyspark_ottla.write.decisions import Prepared, TaskResult, Write
    from pyspark_ottla.write.two_phase_commit import BatchCommit

logger = spark_logger()

# Exists only for Python; an Arrow RecordBatch as far as Spark is concerned.
RecordBatch = Any

# Spark's names of what a streaming task belongs to. They are in no documentation, but the engine
# itself finds the batch by them, and no other way leads to them. The job group of a streaming query
# is the id of its run.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
RUN_ID_PROPERTY = "spark.jobGroup.id"

COLUMN_TYPES: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (headers_type(),),
    "timestamp": (TimestampType(), LongType()),  # with writeTimestamp; long: milliseconds
}


class TaskMessage(WriterCommitMessage):
    """What one task has written, for the driver."""

    def __init__(self, result: TaskResult, write: Write | None) -> None:
        self.result = result
        self.write = write


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises ConnectorError unless such rows can be written; other columns are ignored.

    Of columns with the same name the first one counts, as in the JVM sink.
    """
    given = {field.name: field.dataType for field in reversed(schema.fields)}
    for name, types in COLUMN_TYPES.items():
        if name == "timestamp" and not options.writes_timestamp:
            continue
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
    options: SinkOptions, batches: Iterator[RecordBatch], write: Write | None
) -> TaskMessage:
    """Writes the rows of a task; `write` is given for exactly-once."""
    try:
        from pyspark_ottla.write.writing import write_task
    except ImportError as error:
        raise missing_package("writing", error) from None
    prepare_process()
    return TaskMessage(write_task(options, batches, write), write)


def commit_write(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    what: str,
    *,
    checkpoint: str | None = None,
) -> None:
    """What the driver does when all tasks have ended well; raises ConnectorError.

    Exactly once: the records are decided to be visible when this returns. `checkpoint` is that of
    a streaming query, if its options have it.
    """
    tasks = [message for message in messages if isinstance(message, TaskMessage)]
    rows = sum(task.result.rows for task in tasks)
    sent = sum(task.result.bytes_sent for task in tasks)
    write = next((task.write for task in tasks if task.write is not None), None)
    if write is not None:
        with _batch_commit(options, tasks, write, checkpoint) as batch:
            if not batch.commit(_prepared(tasks), rows):
                return
    logger.info("%s: %d rows, %d bytes, %d tasks", what, rows, sent, len(tasks))


def abort_write(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], what: str
) -> None:
    """What the driver does when a task or the commit has failed."""
    tasks = [message for message in messages if isinstance(message, TaskMessage)]
    write = next((task.write for task in tasks if task.write is not None), None)
    if write is not None:
        with _batch_commit(options, tasks, write) as batch:
            batch.abort(_prepared(tasks))
    elif not options.exactly_once:
        rows = sum(task.result.rows for task in tasks)
        logger.warning("%s; %d rows of other tasks are in the topics all the same", what, rows)


def _prepared(tasks: Sequence[TaskMessage]) -> list[Prepared]:
    return [task.result.prepared for task in tasks if task.result.prepared is not None]


@contextmanager
def _batch_commit(
    options: SinkOptions, tasks: Sequence[TaskMessage], write: Write, checkpoint: str | None = None
) -> Iterator[BatchCommit]:
    from pyspark_ottla.cluster.cluster import KafkaCluster
    from pyspark_ottla.cluster.connections import client_of
    from pyspark_ottla.write.repeated_writes import plan_digest, target_of
    from pyspark_ottla.write.two_phase_commit import BatchCommit

    assert options.topic is not None
    with client_of(options.client) as client:
        cluster = KafkaCluster(client, options.client)
        found = {task.result.target for task in tasks if task.result.target is not None}
        if len(found) > 1:
            raise ConnectorError(
                errors.WRITE_FAILED,
                f"The topic {options.topic} was deleted and created again while "
                f"{write.describe()} was written; nothing of the batch is visible",
                "Start the query again: it writes the batch again",
            )
        # Tasks without rows look nothing up.
        target = found.pop() if found else target_of(cluster, options.topic)
        plan = plan_digest(checkpoint, write.batch_id)
        yield BatchCommit(options, cluster, write, target, plan)


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
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        write = identify_write(self._options, self._job) if self._options.exactly_once else None
        return write_rows(self._options, iterator, write)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        checkpoint = self._options.checkpoint
        commit_write(self._options, messages, "written", checkpoint=checkpoint)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_write(self._options, messages, "The job has failed")


def identify_write(options: SinkOptions, job: str, *, is_stream: bool = False) -> Write:
    """The write that the current task belongs to; what Spark's API does not tell is taken from the
    properties of the task. Raises ConnectorError if the write cannot be recognised when it is
    repeated."""
    from pyspark import TaskContext

    from pyspark_ottla.write.decisions import Write

    context = TaskContext.get()

    def of_task(name: str) -> str:
        return (context.getLocalProperty(name) if context else None) or ""

    prefix, run = options.transactional_id_prefix, of_task(RUN_ID_PROPERTY)
    if options.batch_id is not None:
        name = f"{prefix}-{options.write_id}"
        return Write(name, options.batch_id, job, run, query=of_task(QUERY_ID_PROPERTY))
    query, batch = of_task(QUERY_ID_PROPERTY), of_task(BATCH_ID_PROPERTY)
    if query and batch:
        # The only write of a streaming sink; in foreachBatch there is one to each topic, or more.
        part = options.write_id or ("" if is_stream else options.topic)
        name = f"{prefix}-{query}-{part}" if part else f"{prefix}-{query}"
        return Write(name, int(batch), job, run, query=query)
    if options.write_id is not None and not is_stream:
        return Write(f"{prefix}-{options.write_id}", 0, job, run, is_numbered=False)
    raise ConnectorError(
        errors.WRITE_ID_NEEDED,
        "Spark does not tell which batch of which query this write belongs to, so that it could "
        "not be recognised when it is repeated",
        "Set the option writeId to a name for this write. In foreachBatch (Spark Connect, or a "
        "thread of your own) also set batchId to the second argument of the function. Or set "
        "delivery to at-least-once",
    )
