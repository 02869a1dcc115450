"""`make bench`: Ottla and Apache Kafka 3.9.1 through the same clients, in turn, on this machine.

Both brokers run at the same time and are measured in turn. Each line warms both with its own load
until two rounds of each agree within 10 %, then measures some rounds; the order alternates. The
table gives the median of these warm rounds with their least and greatest, the ratio to Kafka, and
the ratio of the first, cold round. An aim is a ratio of the warm medians. Only ratios of one run
count: the machine may be shared and noisy. Without Java or Maven, Ottla alone is driven and
compared with Kafka's stored figures of another run, which the table states.

    make bench                            at most about 90 minutes
    make bench ARGUMENTS="--quick"        short loads, one warm round
    make bench ARGUMENTS="--only latency,tiny"
    make bench ARGUMENTS="--workers 1"    without the column of `ottla start --workers 2`
    make bench ARGUMENTS="--beside ../before"      another checkout, with its own .venv
    make bench ARGUMENTS="--python /usr/bin/python3.14"    the Python of the broker's process
    make bench ARGUMENTS="--profile --rounds 1 --without-kafka"    where Ottla's time goes

The table is also written as Markdown, with the figures of every round as JSON beside it.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import (
    clients,
    coordinators,
    interpreter,
    machine,
    profiles,
    scrape,
    targets,
    throughput,
)
from benchmarks.report import Report
from tests.doubles import apache_kafka

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
# More than what a broker writes in a round.
TOUCHED_BYTES = 6 << 30
Measurements = dict[str, float]
# What a data directory may have besides deleted topics, and how long their deletion may take: it
# begins every ten seconds in Ottla.
LEFT_BYTES = 64 << 20
DELETION_SECONDS = 30.0
# Two rounds that differ by less are taken for those of a warm broker.
AGREEMENT = 0.1
MAX_WARM_UPS = 4
RATE_UNITS = ("/s", "p50")


class Work(NamedTuple):
    """Measurements on a running broker; gives figures by name."""

    name: str
    run: Callable[[targets.Target, float], Measurements]
    needs_java: bool = False
    #: It starts the broker again, so there is nothing to warm, and one round.
    restarts: bool = False
    #: A round reads what an earlier one wrote; other topics are deleted after each round.
    reads: bool = False
    #: Its clients use one address only, so workers cannot be measured.
    one_broker: bool = False


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
    Work("java consume", throughput.java_consume, needs_java=True, reads=True),
    _librdkafka("librdkafka produce small", 100, 6, "all"),
    _librdkafka("librdkafka produce", 1000, 1, "1"),
    Work(
        "librdkafka consume",
        partial(throughput.librdkafka_consume, topic="rd-1000-1-1"),
        reads=True,
    ),
    _librdkafka("TLS produce", 1000, 1, "1", with_tls=True),
    Work(
        "TLS consume",
        partial(throughput.librdkafka_consume, topic="rd-1000-1-1", with_tls=True),
        reads=True,
    ),
    *(
        Work(
            f"{name} connections {number}",
            partial(work, connections=number),
            reads=work is throughput.wire_consume,
        )
        for name, work in (("produce", throughput.wire_produce), ("fetch", throughput.wire_consume))
        for number in (1, 10, 100)
    ),
    Work("tiny", throughput.tiny),
    *(
        Work(f"flush partitions {number}", partial(throughput.flushed_produce, partitions=number))
        for number in (1, 50)
    ),
    Work("latency", throughput.latencies),
    Work("heartbeats", coordinators.heartbeats),
    Work("rebalance", coordinators.rebalance),
    Work("commits", coordinators.commits),
    Work("transactions", coordinators.transactional_produce),
    Work("resident", throughput.resident, restarts=True),
    Work("idle", throughput.idle, restarts=True),
    Work("loading", coordinators.loading, restarts=True, one_broker=True),
    Work("scrape", scrape.scrape, restarts=True, one_broker=True),
]


def once(work: Work, target: targets.Target, scale: float) -> Measurements:
    """The figures of one round; a measurement that fails is printed and has none."""
    begun, before = time.perf_counter(), client_seconds(target)
    try:
        found = work.run(target, scale)
    except Exception:
        print(f"  {target.name}: {work.name} FAILED\n{traceback.format_exc()}", flush=True)
        return {}
    taken = time.perf_counter() - begun
    share = (client_seconds(target) - before) / taken / (os.cpu_count() or 1)
    print(f"  {target.name}: {work.name}, {taken:.0f} s, clients {share:.0%}", flush=True)
    return found | {f"{work.name}: clients' share of the processors, %": share * 100}


def client_seconds(target: targets.Target) -> float:
    """Processor time of the clients; brokers that were stopped are none."""
    return machine.client_seconds() - target.ended_seconds


def agree(before: Measurements, after: Measurements) -> bool:
    """The rates of two rounds differ by 10 % at most. Rounds without a rate agree."""
    return all(
        abs(after[name] - value) <= AGREEMENT * value
        for name, value in before.items()
        if name in after and any(unit in name for unit in RATE_UNITS)
    )


def measure(
    work: Work,
    contestants: Sequence[targets.Target],
    arguments: argparse.Namespace,
    deadline: float,
    report: Report,
) -> None:
    """Cold round, warming up, and the warm rounds of one line."""
    if work.one_broker:
        contestants = [each for each in contestants if each.least_partitions == 1]
    earlier: dict[str, Measurements] = {}
    wanted = 1 if work.restarts else arguments.rounds
    number = warm = 0
    while warm < wanted and time.perf_counter() < deadline:
        order = contestants if number % 2 else tuple(reversed(contestants))
        found = {}
        for target in order:
            target.round = number
            found[target.name] = once(work, target, arguments.scale)
        is_warm = work.restarts or number >= MAX_WARM_UPS or warm > 0
        if not is_warm and number:
            is_warm = all(agree(earlier[name], figures) for name, figures in found.items())
        if is_warm:
            warm += 1
        for name, figures in found.items():
            report.add(name, figures, is_warm=is_warm, is_cold=number == 0 and not work.restarts)
        earlier = found
        number += 1
        if not work.reads:
            delete_written(contestants)
    if warm < wanted:
        print(f"  {work.name}: {warm} of {wanted} warm rounds, the time has ended", flush=True)
    if arguments.profile and not work.restarts:
        report.add_profile(work.name, profiled_round(work, contestants[0], arguments.scale))
    delete_written(contestants)
    report.write()  # after each line: an interrupted run has written its figures


def profiled_round(work: Work, ottla: targets.Target, scale: float) -> profiles.Profile:
    """One more round, whose figures do not count."""
    assert ottla.process is not None
    ottla.round += 1
    with profiles.sampled([ottla.process.pid]) as found:
        once(work, ottla, scale)
    return found[0]


def delete_written(contestants: Sequence[targets.Target]) -> None:
    """Deletes the topics of a round, and waits until their files are gone.

    Otherwise the data of earlier rounds fill the page cache, and later rounds write to memory that
    is used for the first time, at twice the cost.
    """
    for target in contestants:
        clients.delete_topics(target.bootstrap)
    deadline = time.perf_counter() + DELETION_SECONDS
    while time.perf_counter() < deadline and any(
        target.data_bytes() > LEFT_BYTES for target in contestants
    ):
        time.sleep(0.5)


def starts(
    contestants: Sequence[targets.Target], arguments: argparse.Namespace, report: Report
) -> None:
    """Starts both brokers in turn; the last ones go on running."""
    for number in range(arguments.rounds):
        for target in contestants if number % 2 else tuple(reversed(contestants)):
            touch_memory(target.directory, arguments.scale)
            target.launch()
            taken = clients.first_produce_s(target.bootstrap, target.started_at)
            time.sleep(1)  # what start-up leaves to be done
            found = {
                "start to first produce: s": taken,
                "resident after start: MB": target.resident_megabytes(),
            }
            report.add(target.name, found, is_warm=True)
            if number + 1 < arguments.rounds:
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


def run(works: list[Work], arguments: argparse.Namespace, with_kafka: bool, report: Report) -> None:
    deadline = time.perf_counter() + arguments.minutes * 60
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE))
    contestants: list[targets.Target] = [targets.Ottla(folder / "ottla", {})]
    try:
        with ExitStack() as stack:
            if with_kafka:
                zookeeper = stack.enter_context(apache_kafka.start_zookeeper(folder))
                contestants.append(targets.Kafka(folder / "kafka", {}, zookeeper))
            if arguments.workers > 1:
                directory = folder / "workers"
                contestants.append(targets.OttlaWorkers(directory, {}, arguments.workers))
            if arguments.beside:
                directory = folder / "beside"
                contestants.append(targets.OttlaBeside(directory, {}, arguments.beside))
            for target in contestants:
                target.with_tls()
                stack.callback(target.stop)
            starts(contestants, arguments, report)
            for work in works:
                print(work.name, flush=True)
                measure(work, contestants, arguments, deadline, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short loads, one warm round")
    parser.add_argument("--rounds", type=int, default=3, help="warm rounds of each line")
    parser.add_argument("--scale", type=float, default=1.0, help="length of each measurement")
    parser.add_argument(
        "--minutes", type=float, default=90.0, help="begin no further round after that"
    )
    parser.add_argument(
        "--only", default="", help="only lines whose name contains one of these words: A,B"
    )
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument(
        "--workers", type=int, default=2, help="workers of the second column; 1: no second column"
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="of the broker's process; clients keep that of this environment",
    )
    parser.add_argument(
        "--beside", type=Path, help="another checkout of Ottla in which `make` has installed .venv"
    )
    parser.add_argument("--output", type=Path, default=CACHE / "results.md")
    parser.add_argument(
        "--profile", action="store_true", help="sample Ottla in one more round of each line"
    )
    parser.add_argument(
        "--store-baseline", action="store_true", help="keep Kafka's medians for machines without it"
    )
    arguments = parser.parse_args()
    try:
        targets.Ottla.python = interpreter.with_packages(arguments.python)
    except interpreter.NotUsable as error:
        parser.error(str(error))
    if arguments.beside and not (arguments.beside / ".venv" / "bin" / "python").exists():
        parser.error(f"{arguments.beside} has no .venv: run `make test-fast` in it once")
    if arguments.profile:
        profiles.check_available()
    parts = arguments.only.split(",")
    works = [work for work in WORKS if any(part in work.name for part in parts)]
    has_java = apache_kafka.is_available()
    with_kafka = has_java and not arguments.without_kafka
    if not has_java:
        works = [work for work in works if not work.needs_java]
    if arguments.quick:
        arguments.rounds, arguments.scale = 1, 0.2
    report = Report(
        arguments.output, machine.describe(targets.Ottla.python), arguments.scale, with_kafka
    )
    print(report.headline)
    run(works, arguments, with_kafka, report)
    report.print()
    if arguments.store_baseline and with_kafka:
        report.store_baseline()


if __name__ == "__main__":
    main()
