"""A streaming query that can be killed in the middle of a batch; run as a process of its own.

    python crashing_query.py BOOTSTRAP TOPIC DIRECTORY STARTING_OFFSETS BLOCKED_BATCH

Every batch is written to a directory of its own, over what an earlier try left there. The batch
BLOCKED_BATCH writes its rows, says so with a file, and then waits to be killed: Spark has journaled
its offsets and never sees it finished.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import build_session
from tests.spark.streams import stream


def start(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    directory: Path,
    starting: str,
    blocked: int | None = None,
) -> StreamingQuery:
    def write_batch(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(directory / "output" / f"batch={number}"))
        if number == blocked:
            (directory / "blocked").touch()
            time.sleep(3600)

    return (
        stream(spark, bootstrap, subscribe=topic, startingOffsets=starting)
        .writeStream.foreachBatch(write_batch)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )


if __name__ == "__main__":
    bootstrap, topic, directory, starting, blocked = sys.argv[1:]
    session = build_session(Path(directory) / "work")
    query = start(session, bootstrap, topic, Path(directory), starting, int(blocked))
    query.awaitTermination()
