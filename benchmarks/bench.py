"""`make bench`: Ottla and Apache Kafka 3.9.1 through the same clients, in turn, on this machine.

Every round starts both brokers again, measures one and then the other (the order alternates), and
the table gives the median over the rounds and the ratio to Kafka. Only ratios of one run count:
the machine may be shared and noisy. Without Java or Maven, Ottla alone is driven and compared with
Kafka's stored figures of another run, which the table states.

    make bench                            three rounds, at most about 20 minutes
    make bench ARGUMENTS="--quick"        one short round
    make bench ARGUMENTS="--rounds 7 --scale 3 --minutes 200"
    make bench ARGUMENTS="--only latency"

The table is also written as Markdown, with every round's figures as JSON beside it.
"""

import argparse
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import clients, coordinators, machine, scrape, targets, throughput
from benchmarks.report import Report
from tests.doubles import apache_kafka

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
# More than what a broker writes in a round.
TOUCHED_BYTES = 6 << 30
Measurements = dict[str, float]


class Work(NamedTuple):
    """Measurements on a running broker; gives figures by name."""

    name: str
    run: Callable[[targets.Target, float], Measurements]
    needs_java: bool = False


def _java(name: str, size: int, partitions: int, acks: str, codec: str) -> Work:
    options = {"size": size, "partitions": partitions, "acks": acks, "codec": codec}
    return Work(name, partial(throughput.java_produce, **options), needs_java=True)


def _librdkafka(name: str, size: int, partitions: int, acks: str, with_tls: bool = False) -> Work:
    options = {"size": size, "partitions": partitions, "acks": acks, "with_tls": with_tls}
    return Work(name, partial(throughput.librdkafka_produce, **options))


WORKS = [
    _java("java produce", 1000, 1, "1", "none"),
    _java("java produce small", 100, 6, "all", "none"),
    _java("java produce large", 10_000, 1, "1", "none"),
    _java("java produce six", 1000, 6, "all", "none"),
    _java("java produce lz4", 1000, 1, "1", "lz4"),
    _java("java produce many", 1000, 100, "1", "none"),
    Work("java consume", throughput.java_consume, needs_java=True),
    _librdkafka("librdkafka produce small", 100, 6, "all"),
    _librdkafka("librdkafka produce", 1000, 1, "1"),
    Work("librdkafka consume", partial(throughput.librdkafka_consume, topic="rd-1000-1-1")),
    _librdkafka("TLS produce", 1000, 1, "1", with_tls=True),
    Work(
        "TLS consume",
        partial(throughput.librdkafka_consume, topic="rd-1000-1-1", with_tls=True),
    ),
    *(
        Work(f"connections {number}", partial(work, connections=number))
        for work in (throughput.wire_produce, throughput.wire_consume)
        for number in (1, 10, 100)
    ),
    Work("tiny", throughput.tiny),
    Work("latency", throughput.latencies),
    Work("heartbeats", coordinators.heartbeats),
    Work("rebalance", coordinators.rebalance),
    Work("commits", coordinators.commits),
    Work("transactions", coordinators.transactional_produce),
    Work("idle", throughput.idle),
    # These start the broker a second time.
    Work("loading", coordinators.loading),
    Work("scrape", scrape.scrape),
]


def measure(
    target: targets.Target, works: list[Work], scale: float, deadline: float
) -> Measurements:
    """All figures of one broker in one round. A measurement that fails is printed and left out, and
    so is what would begin after the deadline."""
    target.with_tls()
    target.launch()
    try:
        found = {
            "start to first produce: s": clients.first_produce_s(
                target.bootstrap, target.started_at
            ),
        }
        time.sleep(1)  # what start-up leaves to be done
        found["resident after start: MB"] = target.resident_megabytes()
        for work in works:
            if work.name == "idle":
                found["resident after load: MB"] = target.resident_megabytes()
            begun = time.perf_counter()
            if begun > deadline:
                print(f"  {target.name}: {work.name} left out, the time has ended", flush=True)
                continue
            try:
                found.update(work.run(target, scale))
            except Exception:
                print(f"  {target.name}: {work.name} FAILED\n{traceback.format_exc()}", flush=True)
            else:
                taken = time.perf_counter() - begun
                print(f"  {target.name}: {work.name}, {taken:.0f} s", flush=True)
        return found
    finally:
        target.stop()


def touch_memory(folder: Path, scale: float) -> None:
    """Write a file and delete it, so that its pages are mapped for the next program.

    A virtual machine may get its memory from its host page by page, on first use. Without this the
    first broker of a round paid for the page cache of both, which halved its throughput.
    """
    chunk = bytes(1 << 24)
    # A disk or a memory that is small is left as it is: the brokers need them more.
    room = min(shutil.disk_usage(folder).free, psutil.virtual_memory().available) // 2
    with (folder / "touched").open("wb") as file:
        for _ in range(min(int(TOUCHED_BYTES * scale), room) // len(chunk)):
            file.write(chunk)
    (folder / "touched").unlink()


def run_rounds(
    works: list[Work], arguments: argparse.Namespace, with_kafka: bool, report: Report
) -> None:
    rounds: int = arguments.rounds
    deadline = time.perf_counter() + arguments.minutes * 60
    CACHE.mkdir(parents=True, exist_ok=True)
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp(dir=CACHE))
        print(f"round {number + 1} of {rounds}", flush=True)
        try:
            with ExitStack() as stack:
                contestants: list[targets.Target] = [targets.Ottla(folder / "ottla", {})]
                if with_kafka:
                    zookeeper = stack.enter_context(apache_kafka.start_zookeeper(folder))
                    contestants.append(targets.Kafka(folder / "kafka", {}, zookeeper))
                if number % 2:
                    contestants.reverse()
                for target in contestants:
                    touch_memory(folder, arguments.scale)
                    report.add(target.name, measure(target, works, arguments.scale, deadline))
                    shutil.rmtree(target.directory / "data", ignore_errors=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        report.write()  # after each round: an interrupted run has written its figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="length of each measurement")
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="begin no further measurement after that"
    )
    parser.add_argument("--only", default="", help="only lines whose name contains this")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--output", type=Path, default=CACHE / "results.md")
    parser.add_argument(
        "--store-baseline", action="store_true", help="keep Kafka's medians for machines without it"
    )
    arguments = parser.parse_args()
    works = [work for work in WORKS if arguments.only in work.name]
    has_java = apache_kafka.is_available()
    with_kafka = has_java and not arguments.without_kafka
    if not has_java:
        works = [work for work in works if not work.needs_java]
    if arguments.quick:
        arguments.rounds, arguments.scale = 1, 0.2
    report = Report(arguments.output, machine.describe(), arguments.scale, with_kafka)
    print(report.headline)
    run_rounds(works, arguments, with_kafka, report)
    report.print()
    if arguments.store_baseline and with_kafka:
        report.store_baseline()


if __name__ == "__main__":
    main()
