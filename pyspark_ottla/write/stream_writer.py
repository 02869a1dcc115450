"""The streaming writer; importable from Spark 4.1 on.

Spark makes a new one for each batch, twice: one to plan the batch, which the tasks get, and one to
commit or abort it. Nothing is kept in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_ottla.job_files import PickledWithJobFiles
from pyspark_ottla.options.sink_options import SinkOptions
from pyspark_ottla.write.writer import (
    RecordBatch,
    abort_write,
    commit_write,
    identify_write,
    write_rows,
)


class StreamWriter(PickledWithJobFiles, DataSourceStreamArrowWriter):
    """At least once by default; exactly once by a two-phase commit of each batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        write = None
        if self._options.exactly_once:
            write = identify_write(self._options, self._job, is_stream=True)
        return write_rows(self._options, iterator, write)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_write(
            self._options,
            messages,
            f"batch {batchId} written",
            checkpoint=self._options.checkpoint,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_write(self._options, messages, f"Batch {batchId} has failed")
