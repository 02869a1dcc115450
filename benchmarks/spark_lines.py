"""The lines of the table of `bench_spark`: what one Spark session measures of one connector."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

STEADY_ROWS_PER_SECOND = 10_000
STEADY_SECONDS = 15
STEADY_WARM_SECONDS = 5
STEADY = "10,000 rows/s"
SHUFFLE_PARTITIONS = 200
LIMITED_TASKS = 50

# The drain of a source whose rows cost nothing: what the API itself can do here and now.
CEILING = "ceiling of the API, 1 KiB, 1 task"

# Measured on a cluster of two workers, too.
CLUSTER = "two workers"
ON_CLUSTER = (
    "drain 1 KiB, 2 partitions",
    "drain 100 B, 2 partitions",
    "mapInArrow 1 KiB, 2 partitions",
    "write 1 KiB, acks=all",
    "write 1 KiB, exactly once",
    "AvailableNow, 10 triggers",
    "trigger of 10 rows",
    "trigger of 10 rows to a topic (Ottla: exactly once)",
)

Sample = dict[str, float | str]


class ProcessTree(Protocol):
    """The processes of the session, for their costs."""

    ignored: set[int]
    peak_megabytes: float

    def processor_seconds(self) -> float:
        """Of all processes since they began."""


class Line(NamedTuple):
    """A line of the table; `run` measures it once. One that is not repeated warms up by itself."""

    name: str
    run: Callable[[], list[Sample]]
    is_repeated: bool = True


class Bench:
    """A session and what its lines share."""

    def __init__(
        self,
        kind: str,
        bootstrap: str,
        delayed: str,
        work: Path,
        spark: SparkSession,
        tree: ProcessTree,
    ) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        self.delayed = delayed
        self.work = work
        self.spark = spark
        self.tree = tree
        self.counts: dict[str, int] = json.loads((work / "counts.json").read_text())
        self._runs = 0

    @property
    def is_ottla(self) -> bool:
        return self.kind == "ottla"

    def frame(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format(self.kind).option("kafka.bootstrap.servers", self.bootstrap)
        if schema is not None and self.is_ottla:
            reader = reader.schema(schema)
        frame = reader.options(**options).option("subscribe", topic).load()
        if schema is not None and not self.is_ottla:
            frame = frame.select(*[column.split()[0] for column in schema.split(",")])
        return frame

    def stream(self, topic: str, *, is_delayed: bool = False, **options: object) -> DataFrame:
        reader = self.spark.readStream.format(self.kind)
        bootstrap = self.delayed if is_delayed else self.bootstrap
        reader = reader.option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def checkpoint(self) -> str:
        self._runs += 1
        return str(self.work / f"checkpoint-{self.kind}-{os.getpid()}-{self._runs}")

    def rate(self, name: str, rows: int, value_bytes: int, run: Callable[[], object]) -> Line:
        """A line of rows a second; `value_bytes` of a row make the MB/s."""

        def once() -> list[Sample]:
            used, start = self.tree.processor_seconds(), time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            used = self.tree.processor_seconds() - used
            return [
                {
                    "name": name,
                    "rate": rows / seconds,
                    "processor_us": used / rows * 1e6,
                    "value_bytes": value_bytes,
                }
            ]

        return Line(name, once)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def read_lines(bench: Bench) -> list[Line]:
    def line(name: str, topic: str, size: int, build: Callable[[], DataFrame]) -> Line:
        frame = cache(build)  # built in the repetition that is not counted

        def run() -> None:
            drain(frame())

        return bench.rate(name, bench.counts[topic], size, run)

    def reading(topic: str, name: str, size: int, schema: str | None = None) -> Line:
        return line(f"drain {name}", topic, size, partial(bench.frame, topic, schema))

    def mapped(topic: str) -> DataFrame:
        frame = bench.frame(topic)
        return frame.mapInArrow(identity, frame.schema)

    def mapping(topic: str, name: str, size: int) -> Line:
        return line(f"mapInArrow {name}", topic, size, partial(mapped, topic))

    def in_source(topic: str, name: str, size: int) -> Line:
        """The same function where it costs least: for ours, in the source's own process."""
        build = partial(mapped, topic)
        if bench.is_ottla:
            build = partial(bench.frame, topic, transform="builtins:iter")
        return line(f"Python function {name}", topic, size, build)

    return [
        reading("k1-1", "1 KiB, 1 partition", 1024),
        reading("k1-2", "1 KiB, 2 partitions", 1024),
        mapping("k1-2", "1 KiB, 2 partitions", 1024),
        in_source("k1-2", "(Ottla: transform) 1 KiB, 2 partitions", 1024),
        reading("b100-2", "100 B, 2 partitions", 100),
        mapping("b100-2", "100 B, 2 partitions", 100),
        reading("lz4-2", "1 KiB lz4, 2 partitions", 1024),
        reading("zstd-2", "1 KiB zstd, 2 partitions", 1024),
        reading("k1-2", "1 KiB, value only", 1024, "value binary"),
        reading("k1-4", "1 KiB, 4 partitions", 1024),
    ]


def small_lines(bench: Bench) -> list[Line]:
    """Reads that cost tasks, not records: of many partitions, and of tasks that end early."""

    def of_wide() -> None:
        bench.frame("wide").count()

    def limited() -> None:
        bench.frame("k1-2", minPartitions=str(LIMITED_TASKS)).limit(3).count()

    return [
        seconds_of("count of 300 partitions with 3 records each", of_wide),
        seconds_of(f"limit(3) of {LIMITED_TASKS} tasks", limited),
    ]


def ceiling(bench: Bench) -> Line:
    from benchmarks.spark_ready_made import ReadyMade

    bench.spark.dataSource.register(ReadyMade)
    rows = bench.counts["k1-1"]
    frame = bench.spark.read.format("ready_made").option("rows", rows).load()
    return bench.rate(CEILING, rows, 1024, partial(drain, frame))


def write_lines(bench: Bench) -> list[Line]:
    rows = bench.counts["sink"]
    records = bench.spark.range(rows, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key", "repeat('x', 1024) AS value"
    )
    few = bench.spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    sparse = few.repartition(SHUFFLE_PARTITIONS)

    def save(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format(bench.kind).options(topic=f"sink-{bench.kind}", **options)
        writer.option("kafka.bootstrap.servers", bench.bootstrap).mode("append").save()

    name = f"write 10 rows, {SHUFFLE_PARTITIONS} shuffle partitions"
    found = [
        bench.rate("write 1 KiB, acks=all", rows, 1024, partial(save, records)),
        seconds_of(name, partial(save, sparse)),
    ]

    def save_once(frame: DataFrame) -> None:
        save(frame, delivery="exactly-once", writeId=uuid.uuid4().hex)

    if bench.is_ottla:
        once = partial(save_once, records)
        found.append(bench.rate("write 1 KiB, exactly once", rows, 1024, once))
        found.append(seconds_of(f"{name}, exactly once", partial(save_once, sparse)))
    return found


def seconds_of(name: str, run: Callable[[], object]) -> Line:
    def once() -> list[Sample]:
        start = time.perf_counter()
        run()
        return [{"name": name, "seconds": time.perf_counter() - start}]

    return Line(name, once)


def run_query(bench: Bench, frame: DataFrame, sink: dict[str, str] | None) -> list[Any]:
    """AvailableNow to its end; the progress of the triggers. Without a sink, rows are dropped."""
    writer = frame.writeStream.option("checkpointLocation", bench.checkpoint())
    if sink is None:
        writer = writer.format("noop")
    else:
        writer = writer.format(bench.kind).options(topic=f"sink-{bench.kind}", **sink)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


def trigger_lines(bench: Bench) -> list[Line]:
    total = bench.counts["k1-2"]

    def catch_up() -> None:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": total // 10}
        run_query(bench, bench.stream("k1-2", **options), None)

    def small(
        name: str, *, is_delayed: bool = False, sink: dict[str, str] | None = None
    ) -> list[Sample]:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
        begun = time.perf_counter()
        progress = run_query(bench, bench.stream("tiny", is_delayed=is_delayed, **options), sink)
        whole = time.perf_counter() - begun
        times = [p["durationMs"]["triggerExecution"] for p in progress if p["numInputRows"]]
        around = whole - sum(p["durationMs"]["triggerExecution"] for p in progress) / 1000
        return [
            {"name": f"{name}, median", "seconds": median(times) / 1000},
            {"name": f"{name}, start and end of the query", "seconds": around},
        ]

    here = {"kafka.bootstrap.servers": bench.bootstrap}
    once = {**here, "delivery": "exactly-once"} if bench.is_ottla else here
    named: dict[str, dict[str, Any]] = {
        "trigger of 10 rows": {},
        "trigger of 10 rows, broker at 1 ms": {"is_delayed": True},
        "trigger of 10 rows to a topic": {"sink": here},
        "trigger of 10 rows to a topic (Ottla: exactly once)": {"sink": once},
    }
    return [
        bench.rate("AvailableNow, 10 triggers", total, 1024, catch_up),
        *(Line(name, partial(small, name, **options)) for name, options in named.items()),
    ]


def feed(bench: Bench, topic: str) -> None:
    """Rows at a steady rate, until the time of the line is over."""
    command = [os.environ["BENCH_PRODUCER"], "-m", "benchmarks.steady_producer", bench.bootstrap]
    command += [topic, str(STEADY_ROWS_PER_SECOND), str(STEADY_SECONDS + STEADY_WARM_SECONDS)]
    producer = subprocess.Popen(command)
    bench.tree.ignored.add(producer.pid)
    try:
        producer.wait(timeout=STEADY_SECONDS + 60)
    finally:
        producer.kill()
        producer.wait()


def trigger_seconds(query: Any) -> list[float]:
    """Of the triggers with rows, without those of the time of warming up."""
    progress = [json.loads(found.json) for found in query.recentProgress]
    times = [p["durationMs"]["triggerExecution"] / 1000 for p in progress if p["numInputRows"]]
    warm = STEADY_WARM_SECONDS / (STEADY_SECONDS + STEADY_WARM_SECONDS)
    return times[int(warm * len(times)) :]


def steady_stream(bench: Bench) -> list[Sample]:
    """Rows come at a steady rate; how old is each when its batch is with the query's own code?"""
    ages: list[tuple[int, int]] = []  # (milliseconds, rows)
    begun = time.monotonic()

    def look(batch: DataFrame, number: int) -> None:
        del number
        counted = batch.selectExpr("unix_millis(timestamp) AS ms").groupBy("ms").count().collect()
        now = int(time.time() * 1000)
        if time.monotonic() - begun > STEADY_WARM_SECONDS:
            ages.extend((now - row["ms"], row["count"]) for row in counted)

    topic = f"steady-{bench.kind}"
    writer = bench.stream(topic, startingOffsets="latest").writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", bench.checkpoint()).start()
    try:
        feed(bench, topic)
        triggers = trigger_seconds(query)
    finally:
        query.stop()
    if not ages or not triggers:
        raise RuntimeError("no row came in time")
    ages.sort()
    total = sum(rows for _, rows in ages)
    samples: list[Sample] = []
    for label, part in (("p50", 0.50), ("p99", 0.99)):
        seen = 0
        for age, rows in ages:
            seen += rows
            if seen >= part * total:
                samples.append({"name": f"{STEADY}: age of a row, {label}", "seconds": age / 1000})
                break
    samples.append({"name": f"{STEADY}: trigger, median", "seconds": median(triggers)})
    return samples


def steady_copy(bench: Bench) -> list[Sample]:
    """Rows come at a steady rate, and each trigger writes them to a topic; ours exactly once."""
    topic = f"steady-{bench.kind}"
    writer = bench.stream(topic, startingOffsets="latest").writeStream.format(bench.kind)
    writer = writer.option("kafka.bootstrap.servers", bench.bootstrap)
    if bench.is_ottla:
        writer = writer.option("delivery", "exactly-once")
    writer = writer.option("topic", f"sink-{bench.kind}")
    query = writer.option("checkpointLocation", bench.checkpoint()).start()
    try:
        feed(bench, topic)
        triggers = trigger_seconds(query)
    finally:
        query.stop()
    name = f"{STEADY} to a topic (Ottla: exactly once): trigger, median"
    return [{"name": name, "seconds": median(triggers)}]


def peak_memory(bench: Bench) -> list[Sample]:
    """Of all lines since the session was warm. Proportional: see `spark_child`."""
    name = "peak proportional memory of all processes"
    return [{"name": name, "megabytes": bench.tree.peak_megabytes}]


def all_lines(bench: Bench) -> list[Line]:
    """The most important first."""
    reads, writes, triggers = read_lines(bench), write_lines(bench), trigger_lines(bench)
    found = [*reads[:4], writes[0], *triggers[:2], *reads[4:6], *writes[1:], *triggers[2:]]
    found += [*small_lines(bench), *reads[6:]]
    if bench.is_ottla:
        found.insert(1, ceiling(bench))
    found.append(Line(STEADY, partial(steady_stream, bench), is_repeated=False))
    found.append(Line(f"{STEADY} to a topic", partial(steady_copy, bench), is_repeated=False))
    return [*found, Line("peak memory", partial(peak_memory, bench), is_repeated=False)]


def warm_up(bench: Bench) -> None:
    drain(bench.frame("k1-2"))


def on_cluster(line: Line) -> Line:
    """The line under another name, and without CPU time: executors are no children of the
    session."""

    def once() -> list[Sample]:
        renamed: list[Sample] = []
        for sample in line.run():
            kept = {key: value for key, value in sample.items() if key != "processor_us"}
            renamed.append({**kept, "name": f"{CLUSTER}: {sample['name']}"})
        return renamed

    return Line(f"{CLUSTER}: {line.name}", once, line.is_repeated)


def cluster_lines(bench: Bench) -> list[Line]:
    """Those that two workers are measured with."""
    reads, writes, triggers = read_lines(bench), write_lines(bench), trigger_lines(bench)
    chosen = [line for line in (*reads, *writes, *triggers) if line.name in ON_CLUSTER]
    return [on_cluster(line) for line in chosen]
