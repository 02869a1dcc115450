"""`python -m benchmarks.bench_brokers`: one, two and more brokers on one machine.

The same 100 connections are spread over the brokers of a cluster, each to a partition that its
broker leads. A broker uses one core, so more of them pay while there are cores for them; each has a
client process of its own here. `--counts 1,2,4` says how many brokers are compared. They are
separate brokers with a ZooKeeper, or with `--workers` the workers of one `ottla start --workers N`.

- *tiny*: a record of 10 bytes a request, five requests in flight.
- *produce*: batches of 16 KB, one in flight.

The rounds of all clusters alternate, after one that is not counted; medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine, targets, wire
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest
from tests.doubles.zookeeper_process import start_zookeeper

CONNECTIONS = 100
READY_SECONDS = 60.0
TOPIC = "spread"


class Load(NamedTuple):
    name: str
    batch: bytes
    in_flight: int


LOADS = (
    Load("tiny requests/s", wire.records(1, 10), 5),
    Load("produce, 16 KB batches/s", wire.records(16, 1000), 1),
)
Work = tuple[str, int, Load, float, int]


def drive(work: Work) -> float:
    """Responses a second of one broker."""
    bootstrap, partition, load, seconds, connections = work
    frames = [wire.produce_frame(TOPIC, partition, load.batch)] * connections
    responses, _, taken = wire.drive([bootstrap] * connections, frames, seconds, load.in_flight)
    return responses / taken


class Brokers:
    """A cluster of so many brokers; broker n leads partition n. `processes` are measured,
    `addresses` are those of its brokers."""

    def __init__(
        self,
        processes: list[targets.Ottla],
        addresses: list[str],
        clients: ProcessPoolExecutor,
    ) -> None:
        self._processes = processes
        self._addresses = addresses
        self._clients = clients

    def create_topic(self) -> None:
        count = len(self._addresses)
        rows = [CreatableReplicaAssignment(n, [n]) for n in range(count)]
        topic = CreatableTopic(TOPIC, -1, -1, rows, [])
        self._until(all, lambda sock: len(wire.call(sock, MetadataRequest(), 9).brokers) == count)
        request = CreateTopicsRequest([topic], 10_000)
        # The controller creates it.
        self._until(any, lambda sock: wire.call(sock, request, 5).topics[0].error_code == 0)
        for partition, address in enumerate(self._addresses):
            wire.check(address, wire.produce_request(TOPIC, partition, LOADS[0].batch))

    def _until(
        self, enough: Callable[[Iterable[bool]], bool], is_done: Callable[..., bool]
    ) -> None:
        """Asks the brokers again and again until `enough` of them are done."""
        deadline = time.perf_counter() + READY_SECONDS
        while not enough([self._asked(each, is_done) for each in self._addresses]):
            if time.perf_counter() > deadline:
                raise SystemExit("the brokers did not become ready")
            time.sleep(0.1)

    def _asked(self, address: str, is_done: Callable[..., bool]) -> bool:
        try:
            with wire.connect(address) as sock:
                return is_done(sock)
        except OSError:
            return False

    def measure(self, load: Load, seconds: float) -> tuple[float, float]:
        """Responses a second, and processor microseconds of the brokers for each."""
        count = len(self._addresses)
        works: list[Work] = [
            (address, n, load, seconds, CONNECTIONS // count)
            for n, address in enumerate(self._addresses)
        ]
        used = sum(each.processor_seconds() for each in self._processes)
        begun = time.perf_counter()
        rate = sum(self._clients.map(drive, works))
        taken = time.perf_counter() - begun
        used = sum(each.processor_seconds() for each in self._processes) - used
        return rate, used / (rate * taken) * 1e6


@contextmanager
def started_workers(count: int, folder: Path, clients: ProcessPoolExecutor) -> Iterator[Brokers]:
    """One command; with one worker it is a broker without a supervisor."""
    target = targets.OttlaWorkers(folder, {}, count)
    target.launch()
    try:
        cluster = Brokers([target], target.addresses, clients)
        cluster.create_topic()
        yield cluster
    finally:
        target.stop()


@contextmanager
def started(count: int, folder: Path, clients: ProcessPoolExecutor) -> Iterator[Brokers]:
    with start_zookeeper(folder / "zookeeper") as zookeeper, ExitStack() as stack:
        brokers: list[targets.Ottla] = []
        for broker_id in range(count):
            settings = {"broker.id": str(broker_id), "zookeeper.connect": zookeeper.connect}
            broker = targets.Ottla(folder / str(broker_id), settings)
            broker.launch()
            stack.callback(broker.stop)
            brokers.append(broker)
        cluster = Brokers(brokers, [each.bootstrap for each in brokers], clients)
        cluster.create_topic()
        yield cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cores = os.cpu_count() or 1
    sensible = [str(each) for each in (1, 2, 4) if each <= cores]
    parser.add_argument("--counts", default=",".join(sensible))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", action="store_true", help="of one command, as a column")
    arguments = parser.parse_args()
    start, unit = (started_workers, "worker(s)") if arguments.workers else (started, "broker(s)")
    counts = [int(each) for each in arguments.counts.split(",")]
    print(machine.describe())
    folder = Path(tempfile.mkdtemp())
    try:
        with ProcessPoolExecutor(max(counts)) as clients, ExitStack() as stack:
            clusters = {
                count: stack.enter_context(start(count, folder / f"of-{count}", clients))
                for count in counts
            }
            print("\n| | " + " | ".join(f"{count} {unit}" for count in counts) + " | ratio |")
            print("|---" * (len(counts) + 2) + "|")
            for load in LOADS:
                found: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
                for number in range(arguments.rounds + 1):
                    for count in counts if number % 2 else reversed(counts):
                        figures = clusters[count].measure(load, arguments.seconds)
                        if number:
                            found[count].append(figures)
                rates = [statistics.median(rate for rate, _ in found[count]) for count in counts]
                costs = [statistics.median(cost for _, cost in found[count]) for count in counts]
                cells = " | ".join(f"{rate:,.0f}" for rate in rates)
                print(f"| {load.name} | {cells} | {rates[-1] / rates[0]:.2f} |")
                cells = " | ".join(f"{cost:.0f}" for cost in costs)
                print(f"| processor µs a request | {cells} | {costs[-1] / costs[0]:.2f} |")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
