"""Streaming queries that can be killed at chosen stages; run as a process of its own.

    python crashing_query.py DIRECTORY
    # with the fields of `Query` objects in DIRECTORY/queries.json

Every batch is written to a directory of its own, over what an earlier try left there. The batch
`blocked` of a query writes its rows, says so with a file, and then waits to be killed: Spark has
journaled its offsets and never sees it finished.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import build_session
from tests.spark.streams import started, stream


@dataclass(frozen=True)
class Query:
    """What a query reads, where it keeps its files, and at which of its batches it stops."""

    bootstrap: str
    topic: str
    directory: str
    starting: str
    blocked: int | None = None
    awaited: bool = True  # that its first batch is in the journal, before the next one starts

    @property
    def path(self) -> Path:
        return Path(self.directory)

    def has_begun(self, query: StreamingQuery) -> bool:
        return not self.awaited or (self.path / "checkpoint" / "offsets" / "0").exists()

    def start(self, spark: SparkSession) -> StreamingQuery:
        def write_batch(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").parquet(str(self.path / "output" / f"batch={number}"))
            if number == self.blocked:
                (self.path / "blocked").touch()
                time.sleep(3600)

        return (
            stream(spark, self.bootstrap, subscribe=self.topic, startingOffsets=self.starting)
            .writeStream.foreachBatch(write_batch)
            .option("checkpointLocation", str(self.path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )


def save(queries: list[Query], directory: Path) -> None:
    (directory / "queries.json").write_text(json.dumps([asdict(query) for query in queries]))


def main(directory: Path) -> None:
    queries = [Query(**fields) for fields in json.loads((directory / "queries.json").read_text())]
    session = build_session(directory / "work")
    running = [
        # One after the other, as all of them start Python processes.
        started(query.start(session), query.has_begun)
        for query in queries
    ]
    for query in running:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
