"""The driver of `tiered_standalone`: reads a tiered topic, and keeps what a user could see of it.

    python tiered_job.py DIRECTORY MASTER

DIRECTORY/job.json says what is read and how. For each read there are its rows (rows-NAME) and its
plan (plan-NAME.txt). What the web interface serves is in ui.txt, the event log in events.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
UI_PAGES = ("environment", "sql?details=true&planDescription=true&length=100", "stages", "jobs")


def build_session(directory: Path, master: str, settings: Mapping[str, Any]) -> SparkSession:
    java = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    events = directory / "events"
    events.mkdir()
    builder: Any = SparkSession.builder
    for name, value in {
        "spark.ui.port": "0",
        "spark.driver.memory": "640m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={directory}",
        "spark.executor.extraJavaOptions": f"{java} -Djava.io.tmpdir={directory}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.task.maxFailures": str(settings["max_failures"]),
        "spark.excludeOnFailure.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.master(master).appName("tiered").getOrCreate()
    session.sparkContext.setLogLevel("INFO")
    return session


class Reads:
    def __init__(self, spark: SparkSession, directory: Path, settings: Mapping[str, Any]) -> None:
        self._spark = spark
        self._directory = directory
        self._common: dict[str, str] = settings["common"]
        self._store: dict[str, str] = settings["store"]
        self._offsets_per_batch = str(settings["offsets_per_batch"])

    def broker(self) -> None:
        self._batch("broker", self._common)

    def direct(self) -> None:
        self._batch("direct", self._common | self._store)

    def stream(self) -> None:
        """The backlog, in several batches."""
        more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": self._offsets_per_batch}
        options = self._common | self._store | more
        frame = self._spark.readStream.format("ottla").options(**options).load()
        written = str(self._directory / "stream")
        query = (
            frame.select(*COLUMNS)
            .writeStream.format("parquet")
            .option("path", written)
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self._keep_plan("stream", lambda: query.explain(True))
        batches = [each for each in query.recentProgress if each.numInputRows]
        (self._directory / "batches").write_text(str(len(batches)))
        self._write("stream", self._spark.read.parquet(written))

    def _batch(self, name: str, options: Mapping[str, str]) -> None:
        frame = self._spark.read.format("ottla").options(**options).load().select(*COLUMNS)
        self._keep_plan(name, lambda: (frame.explain(True), frame.explain("formatted")))
        self._write(name, frame)

    def _write(self, name: str, frame: DataFrame) -> None:
        frame.write.parquet(str(self._directory / f"rows-{name}"))

    def _keep_plan(self, name: str, explain: Any) -> None:
        with (self._directory / f"plan-{name}.txt").open("w") as file, redirect_stdout(file):
            explain()


def ui_pages(spark: SparkSession) -> str:
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    pages = []
    for page in UI_PAGES:
        with urlopen(f"{base}/{page}", timeout=60) as response:
            pages.append(response.read().decode())
    return "\n".join(pages)


def main(directory: Path, master: str) -> None:
    settings = json.loads((directory / "job.json").read_text())
    spark = build_session(directory, master, settings)
    reads = Reads(spark, directory, settings)
    for name in settings["reads"]:
        getattr(reads, name)()
    (directory / "ui.txt").write_text(ui_pages(spark))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
