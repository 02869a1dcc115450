"""One Spark session that measures one connector; started by `bench_spark`, prints JSON.

    python -m benchmarks.spark_child FORMAT BOOTSTRAP WORK_DIRECTORY REPEATS [JAR,JAR,...]

Figures: rows/s of the best repetition, and the processor seconds of the whole process tree (Java
and all Python workers) for it; the broker is in neither.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

Figures = dict[str, dict[str, float]]


class Tree:
    """Processor time and memory of this process and all that it has started."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._ended: dict[int, float] = {}
        self.peak_megabytes = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def processor_seconds(self) -> float:
        total = 0.0
        for process in [self._self, *self._self.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            # Workers that a daemon forked and reaped are in the daemon's own sum of children.
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def _watch(self) -> None:
        while True:
            resident = 0
            for process in [self._self, *self._self.children(recursive=True)]:
                try:
                    resident += process.memory_info().rss
                except psutil.Error:
                    continue
            self.peak_megabytes = max(self.peak_megabytes, resident / 1e6)
            time.sleep(0.2)


class Bench:
    def __init__(self, kind: str, bootstrap: str, work: Path, repeats: int, jars: str) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        self.work = work
        self.repeats = repeats
        self.figures: Figures = {}
        self.tree = Tree()
        java = f"-XX:-UsePerfData -Djava.io.tmpdir={work}"
        self.spark: SparkSession = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(work / "warehouse"))
            .config("spark.driver.extraJavaOptions", java)
            .config("spark.jars", jars)
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("OFF")

    def frame(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format(self.kind).option("kafka.bootstrap.servers", self.bootstrap)
        if schema is not None and self.kind == "ottla":
            reader = reader.schema(schema)
        frame = reader.option("subscribe", topic).options(**options).load()
        if schema is not None and self.kind != "ottla":
            frame = frame.select(*[column.split()[0] for column in schema.split(",")])
        return frame

    def measure(self, name: str, rows: int, work: Callable[[], object]) -> None:
        """The best of several repetitions; the machine may be shared."""
        best = (0.0, 0.0)
        for _ in range(self.repeats):
            used, start = self.tree.processor_seconds(), time.perf_counter()
            work()
            seconds = time.perf_counter() - start
            processor = self.tree.processor_seconds() - used
            best = max(best, (rows / seconds, processor / rows * 1e6))
        self.figures[name] = {"rate": best[0], "processor_us": best[1]}

    def cold_start(self, topic: str) -> None:
        """From a session that has run something else to the first row of a first read."""
        self.spark.range(10).count()
        start = time.perf_counter()
        self.frame(topic).limit(1).collect()
        self.figures["cold start to the first row"] = {"seconds": time.perf_counter() - start}


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def read_works(bench: Bench, counts: dict[str, int]) -> None:
    for topic, name in (
        ("k1-1", "1 KiB, 1 partition"),
        ("k1-2", "1 KiB, 2 partitions"),
        ("k1-4", "1 KiB, 4 partitions"),
        ("b100-2", "100 B, 2 partitions"),
        ("lz4-2", "1 KiB lz4, 2 partitions"),
        ("zstd-2", "1 KiB zstd, 2 partitions"),
    ):
        frame = bench.frame(topic)
        bench.measure(f"drain {name}", counts[topic], partial(drain, frame))
    only = bench.frame("k1-2", "value binary")
    bench.measure("drain 1 KiB, value only", counts["k1-2"], lambda: drain(only))
    for topic, name in (("k1-2", "1 KiB"), ("b100-2", "100 B")):
        mapped = bench.frame(topic)
        mapped = mapped.mapInArrow(identity, mapped.schema)
        bench.measure(f"mapInArrow {name}", counts[topic], partial(drain, mapped))


def stream_works(bench: Bench, counts: dict[str, int]) -> None:
    run = 0

    def available_now(topic: str, per_trigger: int) -> list[Any]:
        nonlocal run
        run += 1
        query = (
            bench.spark.readStream.format(bench.kind)
            .option("kafka.bootstrap.servers", bench.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", per_trigger)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(bench.work / f"checkpoint-{bench.kind}-{run}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress]

    total = counts["k1-2"]
    bench.measure("AvailableNow, 10 triggers", total, lambda: available_now("k1-2", total // 10))
    progress = available_now("tiny", 10)
    times = sorted(p["durationMs"]["triggerExecution"] for p in progress if p["numInputRows"])
    bench.figures["trigger of 10 rows, median"] = {"seconds": times[len(times) // 2] / 1000}


def write_works(bench: Bench, rows: int) -> None:
    frame = bench.spark.range(rows, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key", "repeat('x', 1024) AS value"
    )

    def save(**options: str) -> None:
        (
            frame.write.format(bench.kind)
            .option("kafka.bootstrap.servers", bench.bootstrap)
            .option("topic", f"sink-{bench.kind}")
            .options(**options)
            .mode("append")
            .save()
        )

    bench.measure("write 1 KiB, acks=all", rows, save)
    if bench.kind == "ottla":
        bench.measure("write exactly once", rows, lambda: save(delivery="exactly-once"))


def main(kind: str, bootstrap: str, work: str, repeats: str, jars: str = "") -> None:
    counts: dict[str, int] = json.loads((Path(work) / "counts.json").read_text())
    bench = Bench(kind, bootstrap, Path(work), int(repeats), jars)
    bench.cold_start("k1-1")
    read_works(bench, counts)
    stream_works(bench, counts)
    write_works(bench, counts["sink"])
    bench.figures["peak memory of all processes"] = {"megabytes": bench.tree.peak_megabytes}
    print(json.dumps(bench.figures), flush=True)
    bench.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
