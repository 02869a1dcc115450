"""The kill matrix of exactly-once writes: Spark processes are killed, and all rows compared.

    python -m tests.spark.kill_matrix --runs 100 --seed 1 [--begin 40] [--brokers ottla,kafka]

A Spark master and two workers run as processes, and a driver that `--py-files` gives the
connector. Each run copies a topic in two batches, with speculation on, and kills an executor or
the driver at one step (see `kill_points`). Of two runs in five the checkpoint is then copied for a
query to another topic, or restored from a backup before the last batch, and the query goes on with
more rows and the same kill. The runs go through all steps in an order that the seed chooses;
`--begin` continues with that one of them. A run fails unless read_committed readers find each row
once; a query that refuses a checkpoint has to name the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.standalone_spark import standalone_cluster
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.crashing_writes import PARTITIONS, committed_values
from tests.spark.kill_points import (
    COPIED,
    EXECUTORS,
    KILLED,
    NAMED,
    RESTORED,
    KillPoint,
    load,
    save,
)
from tests.spark.shipping import write_zip
from tests.spark.support import Sent, create_topic, write

HERE = Path(__file__).parent
ROWS = 36
MORE_ROWS = 12
# Of one driver, from its start to its end.
DRIVER_SECONDS = 900
DRIVERS_MAX = 4

TASK_REQUESTS = ("OffsetFetch", "InitProducerId", "AddPartitionsToTxn", "Produce")
DRIVER_REQUESTS = (
    "InitProducerId",
    "OffsetFetch",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "DescribeTransactions",
    "EndTxn",
    "ListTransactions",
)


def all_points() -> list[KillPoint]:
    """Executor and driver at every step."""
    points = [
        KillPoint("executor", request, when, 0, "executor", continues)
        for request in TASK_REQUESTS
        for when in ("before", "after")
        for continues in (False, True)
    ]
    points.append(KillPoint("executor", "end", "at", 0, "executor"))
    for request in DRIVER_REQUESTS:
        # EndTxn number 0 makes the decision; the others end the transactions of tasks.
        for occurrence in range(4 if request == "EndTxn" else 1):
            for when in ("before", "after"):
                point = KillPoint("driver", request, when, occurrence, "driver")
                points += [point, replace(point, continues=True)]
                if request in ("TxnOffsetCommit", "EndTxn"):
                    points.append(replace(point, victim="executor"))
    for step in ("begin", "end"):
        points.append(KillPoint("driver", step, "at", 0, "driver"))
        points.append(KillPoint("driver", step, "at", 0, "executor"))
    return points


def chosen_points(runs: int, seed: int) -> list[KillPoint]:
    """All of them in a random order, and again from the beginning, each other one with a twin."""
    chooser = random.Random(seed)
    points: list[KillPoint] = []
    while len(points) < runs:
        some = all_points()
        chooser.shuffle(some)
        points += [
            replace(
                point,
                slow=chooser.random() < 0.3,
                checkpoint=chooser.choice(("", "", "", COPIED, RESTORED)),
            )
            for point in some
        ]
    return points[:runs]


class Matrix:
    """Runs on one broker and one Spark cluster."""

    def __init__(self, work: Path, bootstrap: str, environment: dict[str, str]) -> None:
        self._work = work
        self._bootstrap = bootstrap
        self._environment = environment
        self._runs: dict[str, KillPoint] = {}

    def add(self, point: KillPoint) -> None:
        name = f"run-{len(self._runs)}"
        self._make(name, name, point)
        for topic in (self._topic(name, "source"), self._topic(name, "target")):
            create_topic(self._bootstrap, topic, PARTITIONS)
        self._send(name, range(ROWS))
        self._runs[name] = point

    def _topic(self, name: str, kind: str) -> str:
        return f"{self._work.name}-{name}-{kind}"

    def _make(self, name: str, source: str, point: KillPoint) -> Path:
        directory = self._work / name
        (directory / EXECUTORS).mkdir(parents=True)
        target = source if point.checkpoint != COPIED else name
        settings = {
            "source": self._topic(source, "source"),
            "target": self._topic(target, "target"),
            "rows": ROWS,
            "bootstrap": self._bootstrap,
        }
        (directory / "run.json").write_text(json.dumps(settings))
        save(point, str(directory))
        return directory

    def _send(self, name: str, numbers: range) -> None:
        sent = [Sent(b"%d" % n, partition=n % PARTITIONS) for n in numbers]
        write(self._bootstrap, self._topic(name, "source"), sent)

    def execute(self, master: str) -> None:
        """Runs all, then those again whose checkpoint was copied or restored."""
        self._drive(master, list(self._runs))
        second = [self._second(name) for name, point in self._runs.items() if point.checkpoint]
        if second:
            self._drive(master, second)

    def _second(self, name: str) -> str:
        """What an operator makes of the checkpoint, while more rows come."""
        point, second = self._runs[name], f"{name}-second"
        directory = self._make(second, name, point)
        checkpoint = directory / "checkpoint"
        shutil.copytree(self._work / name / "checkpoint", checkpoint)
        if point.checkpoint == RESTORED:
            for log in ("commits", "offsets"):
                last = max(int(path.name) for path in (checkpoint / log).glob("[0-9]*"))
                for path in ((checkpoint / log / str(last)), (checkpoint / log / f".{last}.crc")):
                    path.unlink(missing_ok=True)
        else:
            create_topic(self._bootstrap, self._topic(second, "target"), PARTITIONS)
        self._send(name, range(ROWS, ROWS + MORE_ROWS))
        return second

    def _drive(self, master: str, names: list[str]) -> None:
        """Starts drivers until all runs have ended."""
        (self._work / "runs.json").write_text(json.dumps(names))
        (self._work / "spark").mkdir(exist_ok=True)
        drivers = 1 + sum(load(str(self._work / name)).victim == "driver" for name in names)
        for number in range(drivers + DRIVERS_MAX):
            log = self._work / f"driver-{len(names)}-{number}.log"
            with log.open("wb") as output:
                ended = subprocess.run(
                    [sys.executable, str(HERE / "kill_job.py"), str(self._work), master],
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                    timeout=DRIVER_SECONDS,
                    check=False,
                )
            if ended.returncode == 0:
                return
        raise AssertionError(f"the runs do not end:\n{log.read_text(errors='replace')[-4000:]}")

    def failures(self) -> list[str]:
        """One line for each run whose rows are not those that were sent, or that killed nothing."""
        found = []
        for name, point in self._runs.items():
            second = self._work / f"{name}-second"
            goes_on = point.checkpoint == RESTORED and not (second / NAMED).exists()
            found += self._wrong_rows(name, point, range(ROWS + (MORE_ROWS if goes_on else 0)))
            if point.checkpoint == COPIED:
                found += self._wrong_rows(second.name, point, range(ROWS, ROWS + MORE_ROWS))
            if not (self._work / name / KILLED).exists():
                found.append(f"{name} ({point.describe()}): nothing was killed")
        return found

    def _wrong_rows(self, name: str, point: KillPoint, numbers: range) -> list[str]:
        wanted = Counter(b"%d" % n for n in numbers)
        rows = committed_values(self._bootstrap, self._topic(name, "target"))
        if rows == wanted:
            return []
        lost, more = wanted - rows, rows - wanted
        return [f"{name} ({point.describe()}): lost {lost}, too many {more}"]


def job_environment(work: Path) -> dict[str, str]:
    """For drivers that get the connector as a zip."""
    package = write_zip(work / "pyspark_ottla.zip")
    files = [str(package), str(HERE / "kill_points.py")]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return (
        inherited
        | spark_environment(work)
        | {
            "PYTHONPATH": os.pathsep.join([str(package), str(HERE)]),
            "PYSPARK_SUBMIT_ARGS": f"--py-files {','.join(files)} pyspark-shell",
            "SPARK_WORKER_DIR": str(work),
            "TMPDIR": str(work),
        }
    )


@contextmanager
def kept_if_failed(parent: Path | None, failed: list[str]) -> Iterator[Path]:
    """A directory that is deleted unless a run failed: its logs and data show the cause."""
    root = Path(tempfile.mkdtemp(prefix="kill-matrix-", dir=parent))
    try:
        yield root
    except BaseException:
        print(f"logs and data are in {root}", file=sys.stderr, flush=True)
        raise
    if failed:
        print(f"logs and data are in {root}", file=sys.stderr, flush=True)
    else:
        shutil.rmtree(root, ignore_errors=True)


BROKERS: dict[str, Any] = {"ottla": start_broker, "kafka": start_kafka}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill Spark processes while they write.")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--begin", type=int, default=0, help="number of the first run, even")
    parser.add_argument("--brokers", default="ottla,kafka")
    parser.add_argument("--batch", type=int, default=20, help="runs on one broker and cluster")
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args(arguments)
    points = chosen_points(given.runs, given.seed)
    names = given.brokers.split(",")
    failed: list[str] = []
    with kept_if_failed(given.directory, failed) as root:
        environment = job_environment(root)
        with standalone_cluster(root, environment) as master, ExitStack() as stack:
            running = {}
            for name in names:
                (root / name).mkdir()
                starting: AbstractContextManager[Any] = BROKERS[name](root / name)
                running[name] = stack.enter_context(starting).bootstrap
            for begin in range(given.begin, len(points), given.batch):
                # Each broker gets its share of the points, and the next seed gives it the others.
                for number, name in enumerate(names):
                    share = points[begin : begin + given.batch][number :: len(names)]
                    work = root / f"{name}-{begin}"
                    work.mkdir()
                    matrix = Matrix(work, running[name], environment)
                    for point in share:
                        matrix.add(point)
                    matrix.execute(master)
                    some = matrix.failures()
                    failed += [f"{name}: {line}" for line in some]
                    print(
                        f"{name}: {len(share)} runs, {len(some)} failed "
                        f"({begin + len(share)} of {len(points)}, seed {given.seed})",
                        *some,
                        sep="\n  ",
                        flush=True,
                    )
    print(f"{len(points) - given.begin} runs, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    assert ROOT.exists()
    sys.exit(main())
