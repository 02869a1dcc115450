"""The job of `ottla spark land`: a streaming query a topic, each into a table of its own.

Exactly once by Spark's sinks: a batch that is repeated after a crash has the same offsets, and the
sink knows a batch that it has committed. Runs until it is stopped, or until what was there at the
start is in the tables.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.job_runner import find_file
from pyspark_ottla.land.compaction import compact
from pyspark_ottla.land.plan import (
    DELTA,
    DROP,
    ICEBERG,
    KEEP,
    PARQUET,
    LandOptions,
    partition_column,
    schema_conflict,
    sentence_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# How often the job reads the progress of its queries.
POLL_SECONDS = 0.5
# Spark allows the Python process of a source ten seconds to start, on a busy machine not enough. A
# query that failed so has done nothing, and is started again.
SLOW_START = "failed to connect back"
STARTS_MAX = 4
# Between the starts of a topic that fails, in a job without an end.
PAUSE_FIRST_SECONDS = 30.0
PAUSE_MAX_SECONDS = 600.0
# Exit codes; 2 is wrong usage.
ALL_FAILED = 1
SOME_FAILED = 3
CORRUPT = "_corrupt"


def read_topic(spark: SparkSession, options: LandOptions, topic: str) -> DataFrame:
    """The rows of a topic as its table has them."""
    has_limits = tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)
    given = options.source_options(topic, has_limits)
    frame = spark.readStream.format("ottla").options(**given).load()
    if options.checks_text:
        frame = with_checked_text(frame)
    if (options.is_decoded or options.checks_text) and options.bad_records in (DROP, KEEP):
        from pyspark.sql import functions as f

        # Counted where the driver sees it: in the progress of the query.
        bad = f.count(CORRUPT).alias("bad")
        frame = frame.observe("decode", f.count(f.lit(1)).alias("records"), bad)
        if options.bad_records == DROP:
            frame = frame.where(f"{CORRUPT} IS NULL").drop(CORRUPT)
    for name in options.partition_by:
        column, expression = partition_column(name)
        if expression is None:
            continue
        if column in frame.columns:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"The table of {topic} cannot be partitioned by {name}: it has another column "
                f"{column}",
            )
        frame = frame.selectExpr("*", f"{expression} AS `{column}`")
    return frame


def with_checked_text(frame: DataFrame) -> DataFrame:
    """The values as text, with the column `_corrupt` as it is of other formats."""
    text = "CAST(value AS STRING)"
    is_text = f"(value IS NULL OR is_valid_utf8({text}))"
    reason = "'the value is not UTF-8 text'"
    key = "CAST(key AS BINARY)"
    corrupt = f"named_struct('reason', {reason}, 'key', {key}, 'value', value)"
    return frame.selectExpr(
        *(
            f"CASE WHEN {is_text} THEN {text} END AS value" if name == "value" else f"`{name}`"
            for name in frame.columns
        ),
        f"CASE WHEN NOT {is_text} THEN {corrupt} END AS {CORRUPT}",
    )


def check_table(spark: SparkSession, options: LandOptions, topic: str, frame: DataFrame) -> bool:
    """Whether the table is there; raises ConnectorError if the rows do not fit it."""
    table = options.table(topic)
    try:
        if options.format == ICEBERG:
            schema = spark.table(table).schema
        else:
            schema = spark.read.format(options.format).load(table).schema
    except Exception as error:  # Spark's own, of many classes
        names = ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_")
        if any(name in str(error) for name in names):
            return False
        raise
    if options.format == PARQUET:
        # The types of these are guessed from the names of folders: a bigint may be an int there.
        columns = {partition_column(name)[0] for name in options.partition_by}
        schema = StructType([field for field in schema.fields if field.name not in columns])
    found = schema_conflict(schema, frame.schema)
    if found is not None:
        raise ConnectorError(
            errors.INVALID_SCHEMA,
            f"The table {table} cannot take the records of {topic}: {found}",
            "Land them in another folder, or read them with the schema of the table "
            "(value.schema.id, value.schema.version)",
        )
    return True


def check_checkpoint(spark: SparkSession, options: LandOptions, topic: str, exists: bool) -> None:
    """Raises ConnectorError if a table and its checkpoint do not belong together.

    A new query over a checkpoint whose table is gone would write only the records that follow. And
    Spark's sink for Parquet skips batches whose numbers are in its log: with a new checkpoint they
    start at zero, and the records of the first batches would be in no file.
    """
    table, checkpoint = options.table(topic), options.checkpoint_of(topic)
    if options.format != ICEBERG:
        exists = bool(names_in(spark, table))
    if not exists and names_in(spark, f"{checkpoint}/commits"):
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The table {table} is not there, but the query of {checkpoint} has written batches of "
            "it, and would go on after them",
            f"To land all records again, delete {checkpoint} as well",
        )
    if options.format != PARQUET:
        return
    has_batches = any(name[:1].isdigit() for name in names_in(spark, f"{table}/_spark_metadata"))
    if has_batches and "metadata" not in names_in(spark, checkpoint):
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The table {table} has batches of a query whose checkpoint is not at {checkpoint}. "
            "Spark would leave out the first batches of a new query",
            "Set --checkpoint to the folder of the earlier runs. If it is lost, land into another "
            "folder",
        )


def check_layout(spark: SparkSession, options: LandOptions, topic: str) -> None:
    """Raises ConnectorError if a Parquet table is partitioned by other columns.

    Spark's sink writes both into the folder, and Spark then reads a part of the rows only.
    """
    if options.format != PARQUET:
        return
    wanted = [partition_column(name)[0] for name in options.partition_by]
    found: list[str] = []
    folder = options.table(topic)
    names = names_in(spark, folder)
    is_empty = not any(name.endswith(".parquet") or "=" in name for name in names)
    while below := sorted(name for name in names if "=" in name and name[0] not in "._"):
        found.append(below[0].partition("=")[0])
        folder = f"{folder}/{below[0]}"
        names = names_in(spark, folder)
    if not is_empty and found != wanted:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The table {options.table(topic)} is partitioned by {', '.join(found) or 'nothing'}, "
            f"not by {', '.join(wanted) or 'nothing'}",
            "Set --partition-by as in the earlier runs, or land into another folder",
        )


def names_in(spark: SparkSession, folder: str) -> set[str]:
    """The names of the files in a folder of any file system that Spark knows; none without it."""
    virtual_machine: Any = spark._jvm  # of Py4J, whose objects have no types
    path = virtual_machine.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if not files.exists(path):
        return set()
    return {status.getPath().getName() for status in files.listStatus(path)}


def start_query(spark: SparkSession, options: LandOptions, topic: str) -> StreamingQuery:
    frame = read_topic(spark, options, topic)
    columns = [partition_column(name)[0] for name in options.partition_by]
    table = options.table(topic)
    exists = check_table(spark, options, topic, frame)
    check_checkpoint(spark, options, topic, exists)
    check_layout(spark, options, topic)
    if options.compacts and exists:
        compact(spark, options, topic, lambda line: print(line, flush=True))
    writer = frame.writeStream.format(options.format).queryName(f"land {topic}")
    writer = writer.option("checkpointLocation", options.checkpoint_of(topic))
    writer = writer.outputMode("append")
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{options.trigger_seconds} seconds")
    if options.format == ICEBERG:
        if not exists:
            create_iceberg_table(spark, frame, table, columns)
        writer = writer.option("merge-schema", "true").option("fanout-enabled", "true")
        return writer.toTable(table)
    writer = writer.option("maxRecordsPerFile", options.file_records_max)
    if options.format == DELTA:
        writer = writer.option("mergeSchema", "true")
    return writer.partitionBy(*columns).start(table)


def create_iceberg_table(
    spark: SparkSession, frame: DataFrame, table: str, columns: list[str]
) -> None:
    """An empty table, which takes columns of later versions of the schema."""
    from pyspark.sql import functions as f

    empty = spark.createDataFrame([], frame.schema)
    creation = empty.writeTo(table).using(ICEBERG)
    creation = creation.tableProperty("write.spark.accept-any-schema", "true")
    if columns:
        creation = creation.partitionedBy(*(f.col(column) for column in columns))
    creation.create()


class Landing:
    """The queries of a job; prints a line for every batch.

    A topic that fails leaves the others alone. In a job without an end it is started again, after
    pauses that grow; `skips` names conditions under which a topic is left out without an error.
    """

    def __init__(
        self,
        start: Callable[[str], StreamingQuery],
        *,
        has_end: bool = True,
        skips: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._has_end = has_end
        self._skips = tuple(skips)
        self._clock = clock
        self._running: dict[str, StreamingQuery] = {}
        self._waiting: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._starts: Counter[str] = Counter()
        self._printed: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        self.rows = 0

    def run(self, topics: Sequence[str]) -> None:
        """Until all have ended; `failed` then has a sentence for each topic that could not be
        landed."""
        try:
            for topic in topics:
                self._begin(topic)
            while self._running or self._waiting:
                for topic in list(self._running):
                    self._check(topic)
                now = self._clock()
                for topic in [topic for topic, at in self._waiting.items() if at <= now]:
                    del self._waiting[topic]
                    self._begin(topic)
                time.sleep(POLL_SECONDS if self._running or self._waiting else 0)
        finally:
            for query in self._running.values():
                query.stop()

    def _begin(self, topic: str) -> None:
        self._starts[topic] += 1
        try:
            self._running[topic] = self._start(topic)
        except Exception as error:  # of the connector, Spark, Java and the table format
            self._fail(topic, reason_of(error))

    def _check(self, topic: str) -> None:
        query = self._running[topic]
        ended = not query.isActive
        self._report(topic, query)
        if not ended:
            return
        del self._running[topic]
        failure = query.exception()
        if failure is None:
            return
        if SLOW_START in str(failure) and self._starts[topic] < STARTS_MAX:
            print(f"{topic}: Spark's Python process was slow to start, starting again", flush=True)
            self._begin(topic)
        else:
            self._fail(topic, sentence_of(str(failure)))

    def _fail(self, topic: str, sentence: str) -> None:
        if any(f"[{condition}]" in sentence for condition in self._skips):
            print(f"{topic}: is not there, skipped", flush=True)
            return
        print(f"ottla: {topic}: {sentence}", file=sys.stderr, flush=True)
        if self._has_end:
            self.failed[topic] = sentence
            return
        pause = min(2 * self._pauses.get(topic, PAUSE_FIRST_SECONDS / 2), PAUSE_MAX_SECONDS)
        self._pauses[topic] = pause
        self._waiting[topic] = self._clock() + pause
        print(f"{topic}: starts again in {pause:.0f} s", flush=True)

    def _report(self, topic: str, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            batch = int(progress["batchId"])
            if batch <= self._printed.get(topic, -1):
                continue
            if not progress["numInputRows"]:
                continue
            self._printed[topic] = batch
            self._pauses.pop(topic, None)
            self.rows += int(progress["numInputRows"])
            print(progress_line(topic, progress), flush=True)


def reason_of(error: Exception) -> str:
    """One sentence, also for what PySpark has no class for, such as a missing jar."""
    return sentence_of(str(getattr(error, "java_exception", error)))


def progress_line(topic: str, progress: Any) -> str:
    """`orders: batch 3, 1200 records in 2.1 s, 4 could not be decoded`."""
    seconds = int(progress["durationMs"].get("triggerExecution", 0)) / 1000
    line = f"{topic}: batch {progress['batchId']}, {progress['numInputRows']} records"
    line += f" in {seconds:.1f} s"
    observed = (progress["observedMetrics"] or {}).get("decode")
    if observed is not None and observed["bad"]:
        line += f", {observed['bad']} could not be decoded"
    return line


def land(spark: SparkSession, options: LandOptions) -> Landing:
    """Runs the queries to their end."""
    landing = Landing(
        lambda topic: start_query(spark, options, topic),
        has_end=options.available_now,
        skips=[errors.UNKNOWN_TOPIC] if options.skip_missing else [],
    )
    landing.run(options.topics)
    return landing


def main(arguments: list[str]) -> int:
    """The job, with the file of its options as argument; returns the exit code: 0, 1 if no topic
    could be landed, and 3 if some could not."""
    from pyspark.sql import SparkSession

    import pyspark_ottla

    text = Path(find_file(arguments[0])).read_text(encoding="utf-8")
    try:
        options = LandOptions.from_json(text)
    except ConnectorError as error:
        print(f"ottla: {error}", file=sys.stderr, flush=True)
        return 1
    spark = SparkSession.builder.appName("ottla land").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    pyspark_ottla.register(spark)
    try:
        landing = land(spark, options)
    finally:
        spark.stop()
    print(f"{landing.rows} records", flush=True)
    if not landing.failed:
        return 0
    failed = ", ".join(sorted(landing.failed))
    print(
        f"ottla: {len(landing.failed)} of {len(options.topics)} topics failed: {failed}",
        file=sys.stderr,
        flush=True,
    )
    return ALL_FAILED if len(landing.failed) == len(options.topics) else SOME_FAILED
