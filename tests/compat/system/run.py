"""Kafka's system-test tools through restarts, kills, upgrades and faults, beside Apache Kafka.

    python -m tests.compat.system.run [--brokers ottla kafka mixed control] [--seed 1]
        [--troubles TEXT ...] [--times 3]

`make compat-system` runs all. Each lane is three brokers on one ZooKeeper: of Ottla, of Apache
Kafka 3.9.1, (mixed) a rolling upgrade from Kafka to Ottla and back, or (control) the same steps
with Kafka in place of Ottla. VerifiableProducer and
VerifiableConsumer, TransactionalMessageCopier, Trogdor's round-trip workload and a Kafka Streams
job (exactly_once_v2) work all the time. In the end every record is read and counted. The exit code
is 1 when something was lost, doubled or out of order. docs/system-tests.md has the last results;
a run with --troubles replaces those of these troubles only.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaException

from tests.compat.comparison import today
from tests.compat.streams.run import compile_job
from tests.compat.system.cluster import Cluster, start_cluster
from tests.compat.system.copiers import Copiers
from tests.compat.system.hosts import enter
from tests.compat.system.measures import Findings, longest_pause_ms
from tests.compat.system.page import write_page
from tests.compat.system.results import LANES, QUIET, Run, save
from tests.compat.system.round_trip import RoundTrips, trogdor_library
from tests.compat.system.streams import Streams
from tests.compat.system.troubles import TROUBLES, UPGRADE, Trouble
from tests.compat.system.verifiable import Verifiable
from tests.doubles.apache_kafka import KAFKA_VERSION, kafka_library
from tests.doubles.eventually import eventually

QUIET_S = 10.0
# Between two troubles, and after a trouble before its pauses are taken as ended.
REST_S = 5.0
WARM_S = 180.0


class Workloads:
    """All clients, and a thread that looks after them."""

    def __init__(self, cluster: Cluster, directory: Path, ended_with: ExitStack) -> None:
        self.verifiable = Verifiable(cluster, directory)
        ended_with.callback(self.verifiable.kill)
        self.copiers = Copiers(cluster, directory)
        ended_with.callback(self.copiers.kill)
        self.round_trips = RoundTrips(cluster, directory)
        ended_with.callback(self.round_trips.kill)
        self.streams = Streams(cluster, directory)
        ended_with.callback(self.streams.kill)
        self._all = (self.verifiable, self.copiers, self.round_trips, self.streams)
        self.error: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="workloads", daemon=True)

    def start(self) -> None:
        """Returns when each client is at work."""
        for each in self._all:
            eventually(each.is_working, f"{type(each).__name__} is not at work", seconds=WARM_S)
        self._thread.start()

    def _look(self) -> None:
        try:
            while not self._stopping.wait(0.5):
                for each in self._all:
                    each.look()
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Ends all clients, each when it has done what it had begun."""
        self.end_watch()
        if self.error is not None:
            raise self.error
        for each in self._all:
            each.stop()

    def check(self, findings: Findings) -> dict[str, int]:
        return {
            **self.verifiable.check(findings),
            **self.copiers.check(findings),
            **self.round_trips.check(),
            **self.streams.check(findings),
        }

    def pauses(self, begin: int, end: int) -> dict[str, int]:
        """The longest pause of a partition for each kind of client, in milliseconds."""
        times = {
            "producer": self.verifiable.produced_times(),
            "consumers": self.verifiable.consumed_times(),
            "copies": self.copiers.arrivals.times,
            "streams": self.streams.arrivals.times,
        }
        return {name: longest_pause_ms(each, begin, end) for name, each in times.items()}

    def end_watch(self) -> None:
        """After this nothing is started again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()


def now_ms() -> int:
    return round(time.time() * 1000)


def chosen_troubles(lane: str, wanted: list[str], times: int) -> list[tuple[str, Trouble]]:
    """The troubles of a lane whose names have one of these texts, so often after each other."""
    found = UPGRADE if lane in ("mixed", "control") else TROUBLES
    named = [
        (name, trouble)
        for name, trouble in found.items()
        if not wanted or any(text in name for text in wanted)
    ]
    return [each for each in named for _ in range(times)]


def run_lane(directory: Path, lane: str, seed: int, troubles: list[tuple[str, Trouble]]) -> Run:
    """Plays a lane; returns what it gave."""
    with ExitStack() as stack:
        kind = "ottla" if lane == "ottla" else "kafka"
        cluster = stack.enter_context(start_cluster(directory, kind))
        if lane == "control":
            cluster.other_kind = {"kafka": "kafka"}
        work = Workloads(cluster, directory, stack)
        stack.callback(work.end_watch)
        work.start()
        begin = now_ms()
        time.sleep(QUIET_S)
        windows = [(QUIET, begin, now_ms())]
        failed: list[dict[str, str]] = []
        for number, (name, trouble) in enumerate(troubles):
            again = sum(name == earlier for earlier, _ in troubles[:number])
            choices = random.Random(f"{seed} {name}" + (f" {again}" if again else ""))
            try:
                windows.append((name, *_play(lane, name, trouble, cluster, choices)))
            except (AssertionError, KafkaException) as error:
                failed.append({"trouble": name, "reason": str(error).splitlines()[0][:400]})
                print(f"{lane}: {failed[-1]}", flush=True)
                cluster.heal()
            if work.error is not None:
                raise work.error
        work.stop()
        findings = Findings()
        counts = work.check(findings)
        rows = [{"trouble": name, **work.pauses(one, two)} for name, one, two in windows]
        failures = work.copiers.failures + work.round_trips.failures
    for row in rows:
        print(lane, row, flush=True)
    for text in (*findings.examples, *failures):
        print(f"{lane}: {text}", flush=True)
    return {
        "day": today(),
        "seed": seed,
        "load": round(os.getloadavg()[2]),
        "rows": rows,
        "counts": counts,
        "lost": findings.lost,
        "doubled": findings.doubled,
        "disordered": findings.disordered,
        "failed": failed,
    }


def _play(
    lane: str, name: str, trouble: Trouble, cluster: Cluster, choices: random.Random
) -> tuple[int, int]:
    begin = now_ms()
    at = time.strftime("%H:%M:%S", time.gmtime())
    trouble(cluster, choices)
    print(f"{lane} {at}: {name}, all in sync after {(now_ms() - begin) / 1000:.1f} s", flush=True)
    time.sleep(REST_S)
    return begin, now_ms()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", nargs="+", choices=LANES, default=LANES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--troubles", nargs="+", default=[], help="only those with this text")
    parser.add_argument("--times", type=int, default=1, help="each trouble so often")
    parser.add_argument("--keep", type=Path, help="a directory for logs that stay")
    chosen = parser.parse_args()
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        print(f"not run: the tools need {', '.join(missing)}")
        return 0
    # Inside the namespaces there is no network to fetch jars from.
    kafka_library()
    trogdor_library()
    compile_job(KAFKA_VERSION)
    reason = enter("tests.compat.system.run")
    if reason is not None:
        print(f"not run: {reason}")
        return 0
    print(f"seed {chosen.seed}", flush=True)
    wrong = False
    for lane in chosen.brokers:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            directory = chosen.keep / lane if chosen.keep else Path(name)
            directory.mkdir(parents=True, exist_ok=True)
            played = chosen_troubles(lane, chosen.troubles, chosen.times)
            result = run_lane(directory, lane, chosen.seed, played)
        bad = {each: result[each] for each in ("lost", "doubled", "disordered", "failed")}
        print(f"{lane}: {result['counts']}, {bad}", flush=True)
        wrong = wrong or any(bad.values())
        save(lane, result, whole=not chosen.troubles)
    write_page()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
