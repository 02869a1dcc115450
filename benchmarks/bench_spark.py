"""`make bench-spark`: our Spark connector beside Spark's own, on the same topics of one broker.

Each connector runs in a Spark session of its own (`spark_child`), both on the same pyspark: 4.2.0,
the newest that Spark's connector is published for, in an environment of its own below .cache. Both
sessions are warm, and take turns line by line: first a repetition of each that is not counted, then
ours, theirs, theirs, ours. Every figure is the median of the counted repetitions. Then some of the
lines follow on a standalone cluster of two workers. What there is no time for (`--minutes`) is left
out and printed. The last output is the table of docs/performance.md.

`--lines drain "1 ms"` measures the lines with one of these texts in their names. `--only-ottla`
measures Ottla alone, `--rows` and `--repetitions` change the amount. `--this-python` takes the
pyspark of this environment: to try the benchmark, not to publish its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from rich.console import Console

from benchmarks import clients, machine
from benchmarks.spark_report import Sample, print_figures
from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import start_broker
from tests.doubles.spark_kafka_jars import connector_jars
from tests.doubles.standalone_spark import standalone_cluster

ROOT = Path(__file__).resolve().parents[1]
PYSPARK = "4.2.0"
CONNECTOR_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{PYSPARK}"
ENVIRONMENT = ROOT / ".cache" / "bench-spark" / f"pyspark-{PYSPARK}"
COLD_TIMEOUT_S = 120.0
COLD_STARTS_MAX_SHARE = 0.2
COLD_STARTS = "cold start"
# A session that does not respond in this time is given up: no line takes a tenth of it.
LINE_TIMEOUT_S = 300.0
DELAY_MS = 1
WIDE_PARTITIONS, WIDE_RECORDS = 300, 3  # of each partition
PEAK_MEMORY = "peak memory"  # costs no time
LOCAL = "local[2]"
CLUSTER = "two workers"
# Of the time: eight of some forty lines, and two more sessions.
CLUSTER_SHARE = 0.25

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
WIDE = Topic("wide", WIDE_PARTITIONS, 100, "none", 0)


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
    """Records of text-like values (half random, half not) with keys of 16 bytes, for each partition
    in turn."""
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
                producer.produce(
                    topic.name,
                    values[number % 200],
                    b"key-%012d" % number,
                    partition=number % topic.partitions,
                )
            except BufferError:
                producer.poll(0.05)
            else:
                break
    if producer.flush(120):
        raise SystemExit(f"the broker did not take all records of {topic.name}")


class Launcher:
    """Starts `spark_child` processes; each has a log of its own in the work directory."""

    def __init__(self, python: Path, bootstrap: str, work: Path) -> None:
        self.bootstrap = bootstrap
        self.work = work
        self._python = python
        self._number = 0

    def start(self, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
        self._number += 1
        log = self.work / f"child-{self._number}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(self._python),
            "BENCH_PRODUCER": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.work),
        }
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [str(self._python), "-m", "benchmarks.spark_child", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                start_new_session=True,
            )
        return process, log


def end(process: subprocess.Popen[str]) -> None:
    """Ends the child with all processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Session:
    """A warm Spark session in a process of its own, which runs one line at a time."""

    def __init__(
        self, launcher: Launcher, kind: str, delayed: str, master: str, jars: list[Path]
    ) -> None:
        self.kind = kind
        more = [",".join(map(str, jars))] if kind == "kafka" else []
        self._process, self._log = launcher.start(
            "serve", kind, launcher.bootstrap, delayed, str(launcher.work), master, *more
        )
        self._responses: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        # Names in the order of the table, and whether to repeat them.
        self.lines: dict[str, bool] = dict(self._response()["lines"])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@@"):
                self._responses.put(json.loads(line[2:]))
        self._responses.put(None)

    def _response(self) -> dict[str, Any]:
        try:
            response = self._responses.get(timeout=LINE_TIMEOUT_S)
        except queue.Empty:
            response = None
        if response is None:
            last = self._log.read_text(errors="replace").strip().splitlines()[-5:]
            raise SystemExit("\n    ".join([f"the session of {self.kind} ended:", *last]))
        return response

    def run(self, name: str) -> list[Sample]:
        """The samples of one run of the line; none, and a message, if it fails."""
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        response = self._response()
        if "error" in response:
            console.print(f"  {self.kind}: {name} failed: {response['error']}")
        samples: list[Sample] = response.get("samples", [])
        return samples

    def close(self) -> None:
        end(self._process)


def cold_start(launcher: Launcher, kind: str, more: list[str], timeout: float) -> list[Sample]:
    """From the start of a process to its first row."""
    arguments = ["cold", kind, launcher.bootstrap, str(launcher.work), str(time.time()), *more]
    process, log = launcher.start(*arguments)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        end(process)
    found = [json.loads(line[2:]) for line in output.splitlines() if line.startswith("@@")]
    if not found:
        last = log.read_text(errors="replace").strip().splitlines()[-3:]
        console.print(f"  the cold start of {kind} did not come to its end:", *last, sep="\n    ")
    return [sample for samples in found for sample in samples]


def cold_starts(
    launcher: Launcher, jars: list[Path], deadline: float, samples: dict[str, list[Sample]]
) -> None:
    """For the JVM connector with local jars, and with Ivy fetching them into an empty cache, as
    `spark.jars.packages` does."""
    variants: list[tuple[str, str, list[str]]] = [("ottla", "ottla", [])]
    if jars:
        variants.append(("kafka", "kafka", [",".join(map(str, jars))]))
        # Not every registry has the token provider, which is small: it is given by hand.
        by_hand = ",".join(str(jar) for jar in jars if "token-provider" in jar.name)
        variants.append(("kafka by Ivy", "kafka", [by_hand, CONNECTOR_PACKAGE]))
    # The first start of all reads half a gigabyte of jars and libraries from the disk.
    console.print("cold start: one for the page cache, not counted")
    cold_start(launcher, "ottla", [], COLD_TIMEOUT_S)
    for _ in range(2):
        for variant in list(variants):
            label, kind, more = variant
            if time.monotonic() >= deadline:
                return
            console.print(f"cold start: {label}")
            found = cold_start(launcher, kind, more, COLD_TIMEOUT_S)
            samples.setdefault(label, []).extend(found)
            if not found:
                variants.remove(variant)


def measure(
    sessions: list[Session],
    chosen: argparse.Namespace,
    deadline: float,
    samples: dict[str, list[Sample]],
) -> None:
    """All chosen lines in turns, into `samples`; see the module."""
    for session in sessions:
        samples.setdefault(session.kind, [])
    names = [name for name in sessions[0].lines if any(text in name for text in chosen.lines)]
    for done, name in enumerate(names):
        able = [session for session in sessions if name in session.lines]
        begun = time.monotonic()
        share = (deadline - begun) / (len(names) - done)
        if share <= 0 and name != PEAK_MEMORY:
            for session in able:
                samples[session.kind].append({"name": name, "left_out": 1})
            continue
        console.print(name)
        if not able[0].lines[name]:
            for session in able:
                samples[session.kind] += session.run(name)
            continue
        for session in able:
            session.run(name)
        for repetition in range(chosen.repetitions):
            for session in able if repetition % 2 == 0 else reversed(able):
                samples[session.kind] += session.run(name)
            spent = time.monotonic() - begun
            if spent + spent / (repetition + 2) > share:
                break


@contextmanager
def delayed_way(broker_port: int, port: int) -> Iterator[None]:
    """A proxy to the broker that adds DELAY_MS to each request and its response."""
    command = [sys.executable, "-m", "benchmarks.delay_proxy", str(port), str(broker_port)]
    process = subprocess.Popen([*command, str(DELAY_MS)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def in_turns(
    launcher: Launcher,
    kinds: list[str],
    delayed: str,
    master: str,
    jars: list[Path],
    chosen: argparse.Namespace,
    deadline: float,
    samples: dict[str, list[Sample]],
) -> None:
    """A session of each kind on that master, and all chosen lines in turns. If a session ends or
    hangs, what was measured before is kept."""
    sessions: list[Session] = []
    try:
        for kind in kinds:
            sessions.append(Session(launcher, kind, delayed, master, jars))
        measure(sessions, chosen, deadline, samples)
    except SystemExit as error:
        console.print(f"{error}", style="bold")
    finally:
        for session in sessions:
            session.close()


@contextmanager
def two_workers(python: Path, work: Path) -> Iterator[str]:
    """A master and two workers as processes, each with a core for either session."""
    place = work / "cluster"
    place.mkdir()
    command = "import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)"
    home = subprocess.run([str(python), "-c", command], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place),
    }
    with standalone_cluster(
        place, environment, spark_home=Path(home.stdout.strip()), cores=2, memory="3g"
    ) as master:
        yield master


def run(python: Path, jars: list[Path], chosen: argparse.Namespace, deadline: float) -> None:
    """Everything from filling the topics to the table."""
    cache = ROOT / ".cache" / "bench-spark"
    cache.mkdir(parents=True, exist_ok=True)
    port, second, proxy = free_port(), free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},DELAYED://127.0.0.1:{second}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},DELAYED://127.0.0.1:{proxy}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DELAYED:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with (
        tempfile.TemporaryDirectory(dir=cache) as name,
        start_broker(Path(name), **settings),
        delayed_way(second, proxy),
    ):
        work, bootstrap = Path(name), f"127.0.0.1:{port}"
        counts = {"sink": chosen.rows // 2, TINY.name: 300}
        counts[WIDE.name] = WIDE_PARTITIONS * WIDE_RECORDS
        for topic in (*TOPICS, TINY, WIDE):
            counts.setdefault(topic.name, int(chosen.rows * topic.share))
            fill(bootstrap, topic, counts[topic.name])
        console.print("topics are filled")
        (work / "counts.json").write_text(json.dumps(counts))
        kinds = ["ottla", "kafka"] if jars else ["ottla"]
        for kind in kinds:
            clients.create_topic(bootstrap, f"sink-{kind}", 2)
            clients.create_topic(bootstrap, f"steady-{kind}", 2)
        launcher = Launcher(python, bootstrap, work)
        samples: dict[str, list[Sample]] = {}
        if any(text in COLD_STARTS for text in chosen.lines):
            until = time.monotonic() + COLD_STARTS_MAX_SHARE * (deadline - time.monotonic())
            cold_starts(launcher, jars, until, samples)
        delayed = f"127.0.0.1:{proxy}"
        share = 1 - CLUSTER_SHARE * any(text in CLUSTER or CLUSTER in text for text in chosen.lines)
        until = time.monotonic() + share * (deadline - time.monotonic())
        in_turns(launcher, kinds, delayed, LOCAL, jars, chosen, until, samples)
        if share < 1:
            with two_workers(python, work) as master:
                in_turns(launcher, kinds, delayed, master, jars, chosen, deadline, samples)
    chosen.json.write_text(json.dumps(samples))
    print_figures(console, samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="of 1 KiB in each topic")
    parser.add_argument("--repetitions", type=int, default=4, help="that count, of each line")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--lines", nargs="+", default=[""], help="texts in the names of lines")
    parser.add_argument("--this-python", action="store_true", help="the pyspark installed here")
    parser.add_argument("--only-ottla", action="store_true")
    samples = ROOT / ".cache" / "bench-spark" / "samples.json"
    parser.add_argument("--json", type=Path, default=samples, help="a file for all samples")
    chosen = parser.parse_args()
    python = Path(sys.executable) if chosen.this_python else python_with_spark()
    jars = [] if chosen.only_ottla else connector_jars()
    if isinstance(jars, str):
        console.print(f"{jars}: ours is measured alone")
        jars = []
    version = "of this environment" if chosen.this_python else PYSPARK
    console.print(f"{machine.describe()}, pyspark {version}, {LOCAL}")
    run(python, jars, chosen, time.monotonic() + chosen.minutes * 60)
    console.print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
