"""How long Kafka Streams (exactly_once_v2) stands still when the controller is stopped cleanly.

    python -m tests.compat.streams.stops [--stops 4]

Three brokers of Ottla, then three of Apache Kafka 3.9.1, with the same settings, on a ZooKeeper of
their own. A job counts records that come at a steady rate. Again and again the broker that is the
controller is stopped as an operator does it (SIGTERM) and started again. Measured is the longest
time without a committed count in the ten seconds after each stop. In the end the counts are checked
as in `run`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.compat.streams.run import (
    RECORDS_PER_S,
    Feed,
    Job,
    Output,
    check,
    compile_job,
    make_topics,
)
from tests.doubles import apache_kafka
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.kafka_process import KafkaBrokerProcess
from tests.doubles.zookeeper_process import start_zookeeper

BROKER_IDS = (1, 2, 3)
WATCHED_S = 10.0
REST_S = 15.0  # from the start of the broker to the next stop
FIRST_S = 20.0  # until the job is warm

SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "inter.broker.protocol.version": "3.9",
}


class Arrivals(threading.Thread):
    """Reads committed counts, and notes when they come."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.output = Output(bootstrap)
        self.times: list[float] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            before = self.output.total
            self.output._take(0.05)
            if self.output.total > before:
                self.times.append(time.monotonic())
        self.output.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def longest_gap(self, begin: float, end: float) -> float:
        inside = [begin, *(each for each in self.times if begin < each < end), end]
        return max(after - before for before, after in pairwise(inside))


@contextmanager
def brokers(directory: Path, kind: type[BrokerProcess]) -> Iterator[dict[int, BrokerProcess]]:
    with start_zookeeper(directory) as zookeeper:
        found: dict[int, BrokerProcess] = {}
        for broker_id in BROKER_IDS:
            port = apache_kafka.free_port()
            found[broker_id] = kind(
                directory / f"broker-{broker_id}",
                {
                    **SETTINGS,
                    "broker.id": str(broker_id),
                    "zookeeper.connect": zookeeper.connect,
                    "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                },
            )
            found[broker_id].port = port
        try:
            for broker in found.values():
                broker.start()
            yield found
        finally:
            for broker in found.values():
                if broker.is_running:
                    broker.kill()


def measure(
    name: str, directory: Path, kind: type[BrokerProcess], library: Path, stops: int
) -> None:
    with brokers(directory, kind) as processes:
        bootstrap = ",".join(f"127.0.0.1:{each.port}" for each in processes.values())
        make_topics(bootstrap, 3)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        sent = int(RECORDS_PER_S * 0.5 * (FIRST_S + stops * (WATCHED_S + REST_S + 10)))
        feed, job = Feed(bootstrap, sent), Job(library, bootstrap, directory, 3)
        arrivals = Arrivals(bootstrap)
        gaps: list[float] = []
        quiet = 0.0
        try:
            job.start()
            feed.start()
            arrivals.start()
            eventually(lambda: arrivals.output.total > RECORDS_PER_S, "no counts", seconds=120)
            time.sleep(FIRST_S)
            for _ in range(stops):
                now = time.monotonic()
                quiet = max(quiet, arrivals.longest_gap(now - WATCHED_S, now))
                controller = admin.list_topics(timeout=30).controller_id
                begin = time.monotonic()
                processes[controller].ask_to_stop()
                time.sleep(WATCHED_S)
                gaps.append(arrivals.longest_gap(begin, begin + WATCHED_S))
                processes[controller].wait_for_end()
                processes[controller].start()
                at = time.strftime("%H:%M:%S", time.gmtime(time.time() - WATCHED_S))
                print(f"{name}: {at} stop of controller {controller}, {gaps[-1]:.2f} s", flush=True)
                time.sleep(REST_S)
            eventually(lambda: arrivals.output.total >= sent, "not all is counted", seconds=900)
        finally:
            job.kill()
            arrivals.stop()
        check(arrivals.output.counts, sent)
        everything = Output(bootstrap, "read_uncommitted")
        everything.read_rest(5.0)
        everything.close()
        print(
            f"{name}: {sent} records counted exactly once; longest time without a committed count "
            f"after a clean stop of the controller {', '.join(f'{gap:.2f}' for gap in gaps)} s, "
            f"without a stop {quiet:.2f} s; {everything.total - sent} counts aborted",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=4)
    parser.add_argument("--only", choices=("ottla", "kafka"))
    parser.add_argument("--keep", type=Path, help="a directory for data and logs that stay")
    arguments = parser.parse_args()
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        print(f"not run: the Streams job needs {', '.join(missing)}")
        return
    library = compile_job(apache_kafka.KAFKA_VERSION)
    kinds: dict[str, type[BrokerProcess]] = {"ottla": BrokerProcess, "kafka": KafkaBrokerProcess}
    for name, kind in kinds.items():
        if arguments.only not in (None, name):
            continue
        if arguments.keep is not None:
            measure(name, arguments.keep / name, kind, library, arguments.stops)
            continue
        with tempfile.TemporaryDirectory() as directory:
            measure(name, Path(directory), kind, library, arguments.stops)


if __name__ == "__main__":
    main()
