"""A Spark job whose Python has pyspark, pyarrow and numpy alone; the connector comes as a zip.

Started by `test_package.py` and `packages.py` as a program of its own: nothing of this tree is on
its path. Runs on Python 3.10. Prints what it found as one line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The zip has the records of tiered storage's metadata of the broker, and nothing else of it.
NOT_THERE = ("cramjam", "crc32c", "lz4", "ottla.broker")


def present() -> list[str]:
    """Which of the packages that must not be there are there all the same."""
    return [name for name in NOT_THERE if importlib.util.find_spec(name) is not None]


def build_session(remote: str) -> SparkSession:
    if remote:
        return SparkSession.builder.remote(remote).getOrCreate()
    return SparkSession.builder.getOrCreate()


class Job:
    """The steps, each of which gives something that JSON can hold."""

    def __init__(self, spark: SparkSession, bootstrap: str, work: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.work = work
        self.behind: list[int] = []

    def read(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("ottla").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader if schema is None else reader.schema(schema)
        return reader.options(subscribe="shipped", **options).load()

    def found_without_register(self) -> str:
        try:
            return str(self.read().count())
        except Exception as error:  # Spark's own, of many classes
            return str(error)[:500]

    def batch(self) -> dict[str, int]:
        """The records of each partition; every one was written with another codec."""
        rows = self.read(includeHeaders="true").groupBy("partition").count().collect()
        return {CODECS[row["partition"]]: row["count"] for row in rows}

    def transform(self) -> list[str]:
        frame = self.read("text string", transform="shipped_transform:texts")
        return sorted({row["text"] for row in frame.collect()})

    def stream(self, topic: str, **options: str) -> int:
        reader = self.spark.readStream.format("ottla")
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.options(subscribe="shipped", startingOffsets="earliest", **options)
        if "transform" in options:
            frame = reader.schema("text string").load().selectExpr("text AS value")
        else:
            frame = reader.load().select("key", "value")
        writer = frame.writeStream.format("ottla").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.option("kafka.compression.type", "zstd")
        writer = writer.option("checkpointLocation", f"{self.work}/{topic}")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        self.behind = self.lag(query)
        return sum(
            source.numInputRows for found in query.recentProgress for source in found.sources
        )

    def lag(self, query: Any) -> list[int]:
        """How far the query is behind in each partition, by its own report."""
        from pyspark_ottla.lag import lag

        return [behind for _, behind in sorted(lag(query).partitions["shipped"].items())]

    def write(self) -> list[str]:
        frame = self.spark.range(3000).selectExpr("concat('a value ', id) AS value").coalesce(1)
        for codec in CODECS:
            writer = frame.write.format("ottla").mode("append").option("topic", f"by-{codec}")
            writer = writer.option("kafka.bootstrap.servers", self.bootstrap)
            writer.option("kafka.compression.type", codec).save()
        return list(CODECS)

    def exactly_once(self) -> dict[str, int]:
        """The rows in topics to which each batch was written twice: as a sink and in foreachBatch.

        Spark Connect gives a write in foreachBatch neither query nor batch, so it names them.
        """
        bootstrap = self.bootstrap

        def write_batch(batch: DataFrame, number: int) -> None:
            writer = batch.write.format("ottla").mode("append").option("topic", "once-foreach")
            writer = writer.option("kafka.bootstrap.servers", bootstrap)
            writer = writer.option("writeId", "shipped").option("batchId", number)
            writer.option("delivery", "exactly-once").save()

        reader = self.spark.readStream.format("ottla").option("subscribe", "shipped")
        reader = reader.option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("startingOffsets", "earliest").load().select("key", "value")
        sink = frame.writeStream.format("ottla").option("topic", "once-sink")
        sink = sink.option("kafka.bootstrap.servers", bootstrap)
        sink = sink.option("delivery", "exactly-once")
        writers = {"once-sink": sink, "once-foreach": frame.writeStream.foreachBatch(write_batch)}
        found = {}
        for topic, writer in writers.items():
            checkpoint = pathlib.Path(self.work, topic)
            for _ in range(2):
                started = writer.option("checkpointLocation", str(checkpoint))
                started.trigger(availableNow=True).start().awaitTermination(120)
                # As if Spark had died before it noted the end of the batch.
                for name in ("0", ".0.crc"):
                    (checkpoint / "commits" / name).unlink(missing_ok=True)
            reading = self.spark.read.format("ottla").option("subscribe", topic)
            reading = reading.option("kafka.bootstrap.servers", bootstrap)
            found[topic] = reading.option("kafka.isolation.level", "read_committed").load().count()
        return found


def main(bootstrap: str, remote: str = "", *artifacts: str) -> None:
    spark = build_session(remote)
    found: dict[str, Any] = {"python": list(sys.version_info[:2])}
    for path in artifacts:
        if remote:
            sys.path.insert(0, path)  # for the client; what is added goes to the server
            spark.addArtifacts(path, pyfile=True)
        else:
            spark.sparkContext.addPyFile(path)
    import ottla
    import pyspark_ottla

    found["files"] = [ottla.__file__, pyspark_ottla.__file__]
    found["present"] = present()
    if not remote:
        spark.sparkContext.setLogLevel("OFF")
        [worker] = spark.sparkContext.parallelize([0], 1).map(lambda _: present()).collect()
        found["present in a worker"] = worker
    with tempfile.TemporaryDirectory() as work:
        job = Job(spark, bootstrap, work)
        found["without register"] = job.found_without_register()
        pyspark_ottla.register(spark)
        found["batch"] = job.batch()
        found["transform"] = job.transform()
        found["stream"] = job.stream("streamed")
        found["lag"] = job.behind
        found["stream with transform"] = job.stream("texts", transform="shipped_transform:texts")
        found["write"] = job.write()
        if remote:
            found["exactly once"] = job.exactly_once()
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
