"""One Spark session that measures one connector; started by `bench_spark`.

    python -m benchmarks.spark_child FORMAT BOOTSTRAP WORK_DIRECTORY SECONDS OUTPUT [JAR,JAR,...]

Writes every repetition of every measurement to OUTPUT (JSON lines) as soon as it is known. Stops
measuring when SECONDS are over; the most important comes first. Processor seconds are those of the
whole process tree (Java and all Python workers); the broker is in none of the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession

# Of each measurement: the first repetition warms up and is not counted.
REPETITIONS_MIN = 2
REPETITIONS_MAX = 4
# Java compiles what it has run often enough: without these the first measurement is of that.
WARM_UP_RUNS = 2
# The configured registry may not have it; its jar is then a local file, see `bench_spark`.
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
STEADY_ROWS_PER_SECOND = 10_000
STEADY_SECONDS = 15
STEADY_WARM_SECONDS = 5


# The drain of a source whose rows cost nothing: what the API itself can do here and now.
CEILING = "ceiling of the API, 1 KiB, 1 task"


class Tree:
    """Processor time and memory of this process and all that it has started."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self.ignored: set[int] = set()
        self.peak_megabytes = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _processes(self) -> list[psutil.Process]:
        children = self._self.children(recursive=True)
        return [self._self, *(child for child in children if child.pid not in self.ignored)]

    def processor_seconds(self) -> float:
        total = 0.0
        for process in self._processes():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            # Workers that a daemon forked and reaped are in the daemon's own sum of children.
            total += times.user + times.system
            if process.pid != self._self.pid:
                total += times.children_user + times.children_system
        return total

    def _watch(self) -> None:
        while True:
            held = sum(proportional_bytes(process.pid) for process in self._processes())
            self.peak_megabytes = max(self.peak_megabytes, held / 1e6)
            time.sleep(0.5)


def proportional_bytes(pid: int) -> int:
    """Resident memory; of pages that several processes share (Spark forks its Python workers), each
    has its part."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


class Work(NamedTuple):
    """One measurement; `value_bytes` of a row make the MB/s."""

    name: str
    rows: int
    value_bytes: int
    run: Callable[[], object]


def build_session(work: Path, jars: str, packages: str = "") -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-XX:-UsePerfData -Djava.io.tmpdir={work}")
        .config("spark.jars", jars)
    )
    if packages:
        # An empty cache, as in a container that has just been started.
        builder = builder.config("spark.jars.packages", packages)
        builder = builder.config("spark.jars.ivy", str(work / f"ivy-{os.getpid()}"))
        builder = builder.config("spark.jars.excludes", TOKEN_PROVIDER)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Bench:
    def __init__(
        self, kind: str, bootstrap: str, work: Path, seconds: float, output: Path, jars: str
    ) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        self.work = work
        self.deadline = time.monotonic() + seconds
        self.output = output
        self.tree = Tree()
        self.spark = build_session(work, jars)
        self._runs = 0

    def note(self, name: str, **figures: float) -> None:
        with self.output.open("a") as file:
            print(json.dumps({"name": name, **figures}), file=file)

    def frame(
        self, topic: str, schema: str | None = None, transform: str | None = None
    ) -> DataFrame:
        reader = self.spark.read.format(self.kind).option("kafka.bootstrap.servers", self.bootstrap)
        if schema is not None and self.kind == "ottla":
            reader = reader.schema(schema)
        if transform is not None and self.kind == "ottla":
            reader = reader.option("transform", transform)
        frame = reader.option("subscribe", topic).load()
        if schema is not None and self.kind != "ottla":
            frame = frame.select(*[column.split()[0] for column in schema.split(",")])
        return frame

    def stream(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.readStream.format(self.kind)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def checkpoint(self) -> str:
        self._runs += 1
        return str(self.work / f"checkpoint-{self.kind}-{os.getpid()}-{self._runs}")

    def measure(self, work: Work, share_seconds: float) -> None:
        """Repeats within the share of time; the first repetition is for warming up."""
        begun = time.monotonic()
        samples: list[tuple[float, float]] = []
        for _ in range(REPETITIONS_MAX):
            used, start = self.tree.processor_seconds(), time.perf_counter()
            work.run()
            seconds = time.perf_counter() - start
            samples.append((seconds, self.tree.processor_seconds() - used))
            spent = time.monotonic() - begun
            if len(samples) >= REPETITIONS_MIN and (
                spent + spent / len(samples) > share_seconds or time.monotonic() > self.deadline
            ):
                break
        for seconds, processor in samples[1:]:
            figures = {"rate": work.rows / seconds, "processor_us": processor / work.rows * 1e6}
            self.note(work.name, value_bytes=work.value_bytes, **figures)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def read_works(bench: Bench, counts: dict[str, int]) -> list[Work]:
    def reading(topic: str, name: str, size: int, schema: str | None = None) -> Work:
        frame = bench.frame(topic, schema)
        return Work(f"drain {name}", counts[topic], size, partial(drain, frame))

    def mapping(topic: str, name: str, size: int) -> Work:
        frame = bench.frame(topic)
        mapped = frame.mapInArrow(identity, frame.schema)
        return Work(f"mapInArrow {name}", counts[topic], size, partial(drain, mapped))

    def in_source(topic: str, name: str, size: int) -> Work:
        """The same function where it costs least: for ours, in the source's own process."""
        frame = bench.frame(topic, transform="builtins:iter")
        if bench.kind != "ottla":
            frame = frame.mapInArrow(identity, frame.schema)
        return Work(f"Python function {name}", counts[topic], size, partial(drain, frame))

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


def ceiling(bench: Bench, rows: int) -> Work:
    from benchmarks.spark_ready_made import ReadyMade

    bench.spark.dataSource.register(ReadyMade)
    frame = bench.spark.read.format("ready_made").option("rows", rows).load()
    return Work(CEILING, rows, 1024, partial(drain, frame))


def write_works(bench: Bench, rows: int) -> list[Work]:
    frame = bench.spark.range(rows, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key", "repeat('x', 1024) AS value"
    )

    def save(**options: str) -> None:
        writer = frame.write.format(bench.kind).options(topic=f"sink-{bench.kind}", **options)
        writer.option("kafka.bootstrap.servers", bench.bootstrap).mode("append").save()

    works = [Work("write 1 KiB, acks=all", rows, 1024, save)]
    if bench.kind == "ottla":

        def once() -> None:
            save(delivery="exactly-once", writeId=uuid.uuid4().hex)

        works.append(Work("write 1 KiB, exactly once", rows, 1024, once))
    return works


def available_now(bench: Bench, topic: str, per_trigger: int) -> list[Any]:
    frame = bench.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=per_trigger)
    writer = frame.writeStream.format("noop").option("checkpointLocation", bench.checkpoint())
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


def catch_up(bench: Bench, total: int) -> Work:
    run = partial(available_now, bench, "k1-2", total // 10)
    return Work("AvailableNow, 10 triggers", total, 1024, run)


def small_triggers(bench: Bench) -> None:
    progress = available_now(bench, "tiny", 10)
    times = sorted(p["durationMs"]["triggerExecution"] for p in progress if p["numInputRows"])
    bench.note("trigger of 10 rows, median", seconds=times[len(times) // 2] / 1000)


def steady_stream(bench: Bench) -> None:
    """Rows come at a steady rate; how old is each when its batch is with the query's own code?"""
    topic = f"steady-{bench.kind}"
    ages: list[tuple[int, int]] = []  # (milliseconds, rows)
    triggers: list[float] = []
    begun = time.monotonic()

    def look(batch: DataFrame, number: int) -> None:
        counted = batch.selectExpr("unix_millis(timestamp) AS ms").groupBy("ms").count().collect()
        now = int(time.time() * 1000)
        if time.monotonic() - begun > STEADY_WARM_SECONDS:
            ages.extend((now - row["ms"], row["count"]) for row in counted)

    frame = bench.stream(topic, startingOffsets="latest")
    writer = frame.writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", bench.checkpoint()).start()
    command = [os.environ["BENCH_PRODUCER"], "-m", "benchmarks.steady_producer", bench.bootstrap]
    command += [topic, str(STEADY_ROWS_PER_SECOND), str(STEADY_SECONDS + STEADY_WARM_SECONDS)]
    producer = subprocess.Popen(command)
    bench.tree.ignored.add(producer.pid)
    try:
        producer.wait(timeout=STEADY_SECONDS + 60)
        for progress in query.recentProgress:
            found = json.loads(progress.json)
            if found["numInputRows"]:
                triggers.append(found["durationMs"]["triggerExecution"])
    finally:
        producer.kill()
        query.stop()
    if not ages or not triggers:
        bench.note("a steady stream", left_out=1)
        return
    ages.sort()
    total = sum(rows for _, rows in ages)
    for name, part in (("p50", 0.50), ("p99", 0.99)):
        seen = 0
        for age, rows in ages:
            seen += rows
            if seen >= part * total:
                bench.note(f"10,000 rows/s: age of a row, {name}", seconds=age / 1000)
                break
    triggers.sort()
    bench.note("10,000 rows/s: trigger, median", seconds=triggers[len(triggers) // 2] / 1000)


def measure_all(
    kind: str, bootstrap: str, work: str, seconds: str, output: str, jars: str = ""
) -> None:
    counts: dict[str, int] = json.loads((Path(work) / "counts.json").read_text())
    bench = Bench(kind, bootstrap, Path(work), float(seconds), Path(output), jars)
    reads = read_works(bench, counts)
    writes = write_works(bench, counts["sink"])
    works = [*reads[:4], writes[0], *reads[4:6], catch_up(bench, counts["k1-2"]), *reads[6:]]
    works += writes[1:]
    if kind == "ottla":
        works.insert(1, ceiling(bench, counts["k1-1"]))
    extra = {"small triggers": small_triggers, "a steady stream": steady_stream}
    for _ in range(WARM_UP_RUNS):
        reads[1].run()
    reserved = STEADY_SECONDS + STEADY_WARM_SECONDS + 25.0
    for number, item in enumerate(works):
        left = bench.deadline - time.monotonic() - reserved
        if left > 0:
            bench.measure(item, left / (len(works) - number))
        else:
            bench.note(item.name, left_out=1)
    for name, one in extra.items():
        if time.monotonic() < bench.deadline:
            one(bench)
        else:
            bench.note(name, left_out=1)
    bench.note("peak memory of all processes", megabytes=bench.tree.peak_megabytes)
    bench.spark.stop()


def cold_start(
    kind: str,
    bootstrap: str,
    work: str,
    begun: str,
    output: str,
    jars: str = "",
    packages: str = "",
) -> None:
    """From the start of the process to the first row; `begun` is the clock when it was started."""
    spark = build_session(Path(work), jars, packages)
    ready = time.time()
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap)
    reader.option("subscribe", "tiny").load().limit(1).collect()
    now = time.time()
    figures = {"cold start": now - float(begun), "cold start, from a ready session": now - ready}
    with Path(output).open("a") as file:
        for name, seconds in figures.items():
            print(json.dumps({"name": name, "seconds": seconds}), file=file)
    spark.stop()


if __name__ == "__main__":
    {"measure": measure_all, "cold": cold_start}[sys.argv[1]](*sys.argv[2:])
