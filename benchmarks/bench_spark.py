"""`make bench-spark`: our Spark connector beside Spark's own, on the same topics of one broker.

Each connector runs in Spark sessions of its own (`spark_child`), both on the same pyspark: 4.2.0,
the newest that Spark's connector is published for, in an environment of its own below .cache. The
sessions alternate; every figure is the median of all repetitions in all rounds. Takes a quarter of
an hour at the most (`--minutes`), whatever the machine does: what there was no time for is left out
and printed. `--only-ottla` measures Ottla alone, `--rows` and `--rounds` change the amount.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from rich.console import Console

from benchmarks import clients, machine
from benchmarks.spark_report import Sample, print_figures
from tests.doubles.broker_process import start_broker
from tests.doubles.spark_kafka_jars import connector_jars

ROOT = Path(__file__).resolve().parents[1]
PYSPARK = "4.2.0"
CONNECTOR_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{PYSPARK}"
ENVIRONMENT = ROOT / ".cache" / "bench-spark" / f"pyspark-{PYSPARK}"
# A child that does not stop by itself when its time has ended gets this much more.
CHILD_GRACE_S = 60.0
COLD_TIMEOUT_S = 120.0
COLD_STARTS_MAX_SHARE = 0.3

console = Console(highlight=False, width=130)


class Topic(NamedTuple):
    name: str
    partitions: int
    size: int
    codec: str
    share: float  # of the number of records


TOPICS = (
    Topic("k1-1", 1, 1024, "none", 1),
    Topic("k1-2", 2, 1024, "none", 1),
    Topic("k1-4", 4, 1024, "none", 1),
    Topic("b100-2", 2, 100, "none", 2),
    Topic("lz4-2", 2, 1024, "lz4", 1),
    Topic("zstd-2", 2, 1024, "zstd", 1),
)
TINY = Topic("tiny", 1, 100, "none", 0)


def python_with_spark() -> Path:
    """A Python with that pyspark and our packages' dependencies; made at the first run."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "complete").exists():
        console.print(f"installing pyspark {PYSPARK} into {ENVIRONMENT} (once)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        wanted = ["pyarrow", "numpy", "pandas<3", "psutil", "crc32c", "cramjam", "lz4"]
        pip = [str(python), "-m", "pip", "install", "-q", f"pyspark=={PYSPARK}", *wanted]
        subprocess.run(pip, check=True)
        (ENVIRONMENT / "complete").touch()
    return python


def fill(bootstrap: str, topic: Topic, count: int) -> None:
    """Records of text-like values (half random, half not) with keys of 16 bytes."""
    clients.create_topic(bootstrap, topic.name, topic.partitions)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": topic.codec,
            "linger.ms": 20,
            "batch.size": 262144,
            "queue.buffering.max.messages": 50_000,
        }
    )
    rng = random.Random(7)
    half = topic.size // 2
    values = [(rng.randbytes(half) + b"text " * (half // 5 + 1))[: topic.size] for _ in range(200)]
    for number in range(count):
        while True:
            try:
                producer.produce(topic.name, values[number % 200], b"key-%012d" % number)
            except BufferError:
                producer.poll(0.05)
            else:
                break
    if producer.flush(120):
        raise SystemExit(f"the broker did not take all records of {topic.name}")


class Children:
    """Runs `spark_child` processes and collects what they note, also of those that fail."""

    def __init__(self, python: Path, bootstrap: str, work: Path) -> None:
        self._python = python
        self._bootstrap = bootstrap
        self._work = work
        self._number = 0
        self.samples: dict[str, list[Sample]] = {}

    def run(
        self, label: str, what: str, kind: str, argument: str, more: list[str], timeout: float
    ) -> bool:
        """Whether the child came to its end; its figures are kept under `label` in any case."""
        self._number += 1
        output, log = (self._work / f"child-{self._number}.{end}" for end in ("json", "log"))
        command = [str(self._python), "-m", "benchmarks.spark_child", what, kind, self._bootstrap]
        command += [str(self._work), argument, str(output), *more]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(self._python),
            "BENCH_PRODUCER": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._work),
        }
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=sink, stderr=sink, start_new_session=True
            )
            try:
                ended = process.wait(timeout=max(1.0, timeout)) == 0
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if output.exists():
            lines = output.read_text().splitlines()
            self.samples.setdefault(label, []).extend(json.loads(line) for line in lines)
        if not ended:
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            console.print(f"  {label} did not come to its end:", *last, sep="\n    ")
        return ended


def cold_starts(children: Children, jars: list[Path], rounds: int, deadline: float) -> None:
    """From the start of a process to its first row; for the JVM connector with local jars,
    and with Ivy fetching them into an empty cache, as `spark.jars.packages` does."""
    variants: list[tuple[str, str, list[str]]] = [("ottla", "ottla", [])]
    if jars:
        variants.append(("kafka", "kafka", [",".join(map(str, jars))]))
        # Not every registry has the token provider, which is small: it is given by hand.
        by_hand = ",".join(str(jar) for jar in jars if "token-provider" in jar.name)
        variants.append(("kafka by Ivy", "kafka", [by_hand, CONNECTOR_PACKAGE]))
    # The first start of all reads half a gigabyte of jars and libraries from the disk.
    console.print("cold start: one for the page cache, not counted")
    children.run("uncounted", "cold", "ottla", str(time.time()), [], COLD_TIMEOUT_S / 2)
    for _ in range(rounds):
        for variant in list(variants):
            label, kind, more = variant
            left = deadline - time.monotonic()
            if left <= 0:
                return
            console.print(f"cold start: {label}")
            timeout = min(left + CHILD_GRACE_S, COLD_TIMEOUT_S)
            if not children.run(label, "cold", kind, str(time.time()), more, timeout):
                variants.remove(variant)


def run(python: Path, jars: list[Path], chosen: argparse.Namespace, deadline: float) -> None:
    """Everything from filling the topics to the table."""
    cache = ROOT / ".cache" / "bench-spark"
    with tempfile.TemporaryDirectory(dir=cache) as name, start_broker(Path(name)) as broker:
        work = Path(name)
        counts = {"sink": chosen.rows // 2, TINY.name: 300}
        for topic in (*TOPICS, TINY):
            counts.setdefault(topic.name, int(chosen.rows * topic.share))
            fill(broker.bootstrap, topic, counts[topic.name])
        console.print("topics are filled")
        (work / "counts.json").write_text(json.dumps(counts))
        kinds = ["ottla", "kafka"] if jars else ["ottla"]
        for kind in kinds:
            clients.create_topic(broker.bootstrap, f"sink-{kind}", 2)
            clients.create_topic(broker.bootstrap, f"steady-{kind}", 2)
        children = Children(python, broker.bootstrap, work)
        until = time.monotonic() + COLD_STARTS_MAX_SHARE * (deadline - time.monotonic())
        cold_starts(children, jars, chosen.rounds, until)
        turns = [
            (number, kind)
            for number in range(chosen.rounds)
            for kind in (kinds if number % 2 == 0 else reversed(kinds))
        ]
        for done, (number, kind) in enumerate(turns):
            share = (deadline - time.monotonic()) / (len(turns) - done)
            console.print(f"round {number + 1}: {kind}, {share:.0f} s")
            more = [",".join(map(str, jars))] if kind == "kafka" else []
            seconds = str(max(30.0, share - 30))
            children.run(kind, "measure", kind, seconds, more, share + CHILD_GRACE_S)
        shutil.rmtree(work / "warehouse", ignore_errors=True)
    children.samples.pop("uncounted", None)
    chosen.json.write_text(json.dumps(children.samples))
    print_figures(console, children.samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="of 1 KiB in each topic")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--only-ottla", action="store_true")
    samples = ROOT / ".cache" / "bench-spark" / "samples.json"
    parser.add_argument("--json", type=Path, default=samples, help="a file for all samples")
    chosen = parser.parse_args()
    python = python_with_spark()
    jars = [] if chosen.only_ottla else connector_jars()
    if isinstance(jars, str):
        console.print(f"{jars}: ours is measured alone")
        jars = []
    console.print(f"{machine.describe()}, pyspark {PYSPARK}, local[2]")
    run(python, jars, chosen, time.monotonic() + chosen.minutes * 60)
    console.print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
