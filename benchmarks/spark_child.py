"""One Spark session that measures one connector; started by `bench_spark`.

    python -m benchmarks.spark_child serve FORMAT BOOTSTRAP DELAYED WORK_DIRECTORY MASTER [JAR,...]

Reads the name of a line of the table from the standard input, runs it once, and writes its samples
as one line of JSON; so that `bench_spark` can let two warm sessions take turns. Processor seconds
are those of the whole process tree (Java and all Python workers); the broker is in none of the
figures.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

import pyspark_ottla
from benchmarks.spark_lines import Bench, all_lines, cluster_lines, warm_up

# Two cores of this machine; any other master is a cluster of two workers.
LOCAL = "local[2]"

# Java compiles what it has run often enough: without these the first measurement is of that.
WARM_UP_RUNS = 2
# A line of the protocol between this process and `bench_spark` begins so; Spark writes others.
MARK = "@@"
# The configured registry may not have it; its jar is then a local file, see `bench_spark`.
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"


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


def build_session(
    work: Path, jars: str, packages: str = "", *, master: str = LOCAL
) -> SparkSession:
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.cores.max", "2")  # of a cluster: one of each worker
        .config("spark.executor.cores", "1")
        .config("spark.executor.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-XX:-UsePerfData -Djava.io.tmpdir={work}")
        .config("spark.executor.extraJavaOptions", "-XX:-UsePerfData")
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


def prepare(kind: str, spark: SparkSession) -> None:
    """Registers our connector, as `ottla spark run` does."""
    if kind == "ottla":
        pyspark_ottla.register(spark)


def say(message: object) -> None:
    print(MARK + json.dumps(message), flush=True)


def serve(kind: str, bootstrap: str, delayed: str, work: str, master: str, jars: str = "") -> None:
    """Runs lines as they are requested; ends with the input."""
    tree = Tree()
    spark = build_session(Path(work), jars, master=master)
    prepare(kind, spark)
    bench = Bench(kind, bootstrap, delayed, Path(work), spark, tree)
    found = all_lines(bench) if master == LOCAL else cluster_lines(bench)
    lines = {line.name: line for line in found}
    for _ in range(WARM_UP_RUNS):
        warm_up(bench)
    tree.peak_megabytes = 0.0
    say({"lines": [[line.name, line.is_repeated] for line in lines.values()]})
    for request in sys.stdin:
        name = request.strip()
        try:
            say({"samples": lines[name].run()})
        except Exception as error:  # reported; the session continues with the next line
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {str(error)[:300]}"})
    bench.spark.stop()


def cold_start(
    kind: str, bootstrap: str, work: str, begun: str, jars: str = "", packages: str = ""
) -> None:
    """From the start of the process to the first row; `begun` is the clock when it was started."""
    spark = build_session(Path(work), jars, packages)
    ready = time.time()
    prepare(kind, spark)
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap)
    reader.option("subscribe", "tiny").load().limit(1).collect()
    now = time.time()
    figures = {"cold start": now - float(begun), "cold start, from a ready session": now - ready}
    say([{"name": name, "seconds": seconds} for name, seconds in figures.items()])
    spark.stop()


if __name__ == "__main__":
    {"serve": serve, "cold": cold_start}[sys.argv[1]](*sys.argv[2:])
