"""A streaming aggregation: counts the words of one topic into another.

    python examples/word_count_stream.py --bootstrap localhost:9092 --lines lines --counts counts \\
        --checkpoint /var/lib/jobs/word-count

The counts are Spark's state and are in the checkpoint with the position in the topic: a restarted
job continues at its position. The word is the key of the records, so a compacted topic of counts
keeps the newest count of every word. The job runs until it is stopped; with --available-now it ends
when it has read the existing records.

Spark allows a Python sink to append only, so foreachBatch writes the words that changed (update
mode). The write is exactly once there too: the sink knows the id of its batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ottla


def word_counts(lines: DataFrame) -> DataFrame:
    """Records of words and their counts, from records whose values are text."""
    words = lines.select(
        F.explode(F.split(F.lower(F.col("value").cast("string")), r"\W+")).alias("word")
    )
    counts = words.where("word != ''").groupBy("word").count()
    return counts.select(
        F.col("word").alias("key"), F.to_json(F.struct("word", "count")).alias("value")
    )


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    lines = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.lines)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100000")
        .load()
    )

    def write_changes(changed: DataFrame, batch_id: int) -> None:
        del batch_id  # the sink knows it
        (
            changed.write.format("ottla")
            .option("kafka.bootstrap.servers", options.bootstrap)
            .option("topic", options.counts)
            .option("delivery", "exactly-once")
            .mode("append")
            .save()
        )

    writer = (
        word_counts(lines)
        .writeStream.foreachBatch(write_changes)
        .option("checkpointLocation", options.checkpoint)
        .outputMode("update")
    )
    if options.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="5 seconds").start()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count the words of a topic into another topic.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--lines", default="lines", help="the topic to read")
    parser.add_argument("--counts", default="counts", help="the topic to write")
    parser.add_argument("--checkpoint", required=True, help="a persistent directory")
    parser.add_argument("--available-now", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    session = SparkSession.builder.appName("word counts").getOrCreate()
    pyspark_ottla.register(session)  # needed if the connector came with the job (--py-files)
    start(session, parse()).awaitTermination()
