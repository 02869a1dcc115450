"""The job of the kill matrix: one streaming query for each run, until all of them have ended.

    python kill_job.py DIRECTORY MASTER

DIRECTORY/runs.json names the directories of the runs; each has its kill point and its topics. A
driver that was killed is started again by the runner and continues with the same checkpoints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kill_points import (  # type: ignore[import-not-found, unused-ignore]
    COPIED,
    NAMED,
    KilledSource,
    load,
)
from pyspark.sql import SparkSession

DONE = "done"
ATTEMPTS = 4
# What a query says that does not go on from a checkpoint.
CONDITIONS = ("WRITE_ID_NEEDED", "BATCH_NUMBERS_RESTARTED")


def build_session(directory: Path, master: str) -> SparkSession:
    java = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    temporary = directory / "spark"
    builder: Any = SparkSession.builder
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "640m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={temporary}",
        "spark.executor.extraJavaOptions": f"{java} -Djava.io.tmpdir={temporary}",
        "spark.task.maxFailures": "4",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.network.timeout": "60s",
        "spark.deploy.maxExecutorRetries": "-1",
    }.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.master(master).appName("kill matrix").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def run(spark: SparkSession, directory: Path) -> None:
    """Copies the source topic to the target, exactly once, in two batches.

    One that refused the checkpoint gets a `writeId`, as the error says.
    """
    settings = json.loads((directory / "run.json").read_text())
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("subscribe", settings["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["rows"] // 2)
        .load()
        .select("value")
        .repartition(3)
    )
    writer = (
        rows.writeStream.format("ottla")
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("topic", settings["target"])
        .option("delivery", "exactly-once")
        .option("path", str(directory))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
    )
    if (directory / NAMED).exists():
        writer = writer.option("writeId", f"{directory.name}-second")
    writer.start().awaitTermination()
    (directory / DONE).touch()


def note_refusal(directory: Path, reason: str) -> None:
    """Of a checkpoint that was restored it is the end, a copied one gets a `writeId`."""
    if any(condition in reason for condition in CONDITIONS):
        (directory / NAMED).write_text(reason)
        if load(str(directory)).checkpoint != COPIED:
            (directory / DONE).touch()


def main(directory: Path, master: str) -> None:
    spark = build_session(directory, master)
    spark.dataSource.register(KilledSource)
    for name in json.loads((directory / "runs.json").read_text()):
        path = directory / name
        for attempt in range(ATTEMPTS):
            if (path / DONE).exists():
                break
            try:
                run(spark, path)
            except Exception as error:
                # A lost executor can end a query; a lost driver ends this process.
                print(f"{name}: {str(error)[:2000]}", file=sys.stderr, flush=True)
                note_refusal(path, str(error))
                if attempt == ATTEMPTS - 1:
                    raise
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
