"""The streaming writer; importable from Spark 4.1 on.

Spark makes a new one for each batch, twice (to plan it and to commit it); nothing is kept in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_ottla.job_files import PickledWithJobFiles
from pyspark_ottla.options.sink_options import SinkOptions
from pyspark_ottla.write.writer import (
    RecordBatch,
    check_tasks,
    log_totals,
    stream_attempt,
    write_rows,
)


class StreamWriter(PickledWithJobFiles, DataSourceStreamArrowWriter):
    """At least once by default; exactly once by a transaction and a marker for each task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        attempt = stream_attempt() if self._options.exactly_once else None
        return write_rows(self._options, iterator, attempt)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_totals(messages, f"batch {batchId} written")
        if self._options.exactly_once:
            check_tasks(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_totals(messages, f"batch {batchId} failed and will be repeated")
