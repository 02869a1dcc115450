"""Updates a table from a topic, each time it runs.

    python examples/refresh_table.py --bootstrap localhost:9092 --topic events \\
        --table /data/events --checkpoint /data/events-checkpoint

Run it from cron or an orchestrator, every five minutes or once a day: Trigger.AvailableNow reads
the records since the last run, in batches within the limit, and ends. The checkpoint has the
position, so no record is read twice or skipped, also after a run was killed. The position is
committed to the group --group too, for lag monitors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name


def rows(records: DataFrame) -> DataFrame:
    """The columns of the table: keys and values as text, and the day for its directories."""
    return records.select(
        F.col("key").cast("string"),
        F.col("value").cast("string"),
        "timestamp",
        "partition",
        "offset",
        F.to_date("timestamp").alias("day"),
    )


def refresh(spark: SparkSession, options: argparse.Namespace) -> int:
    """Appends the new records to the table; returns the number of new rows."""
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", str(256 << 20))
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.group.id", options.group)
        .option("commitOffsets", "true")
        .load()
    )
    query = (
        rows(records)
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", options.table)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Append the new records of a topic to a table.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", required=True, help="the directory of a parquet table")
    parser.add_argument("--checkpoint", required=True, help="a persistent directory")
    parser.add_argument("--group", default="refresh-table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    session = SparkSession.builder.appName(f"refresh {chosen.table}").getOrCreate()
    print(f"{refresh(session, chosen)} new rows in {chosen.table}")
