"""`make bench`: Ottla and Apache Kafka 3.9.1 through the same clients, in turn, on this machine.

Every round starts both brokers afresh, drives one and then the other (the order alternates), and
the table gives the median over the rounds and the ratio to Kafka. Only ratios of one run count:
the machine may be shared and noisy. `--quick` is one short round; `--only WORD` picks the lines
whose name contains the word. Without Java or Maven the stored figures of Kafka are not used:
Ottla's own are printed alone, and that is said.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks import clients, coordinators, machine, targets
from benchmarks.report import Figure, print_table
from tests.doubles import apache_kafka

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
Measurements = dict[str, float]


class Work(NamedTuple):
    """One measurement on a running broker; gives figures by name."""

    name: str
    run: Callable[[targets.Target, float], Measurements]


def with_processor_time(
    target: targets.Target, megabytes: float, run: Callable[[], float], label: str
) -> Measurements:
    before = target.processor_seconds()
    value = run()
    used = target.processor_seconds() - before
    return {label: value, f"{label}: broker CPU s per GB": used / (megabytes / 1000)}


def java_produce(
    target: targets.Target, scale: float, size: int, partitions: int, acks: str, codec: str
) -> Measurements:
    label = f"Java produce {size} B, {partitions} part., acks={acks}, {codec}: records/s"
    topic = f"perf-{size}-{partitions}-{acks}-{codec}"
    clients.create_topic(target.bootstrap, topic, partitions)
    count = int(scale * min(500_000, 500_000_000 // size))

    def run() -> float:
        output = targets.run_java_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
            *("--throughput", "-1", "--producer-props"),
            f"bootstrap.servers={target.bootstrap}",
            f"acks={acks}",
            f"compression.type={codec}",
        )
        return float(output.strip().splitlines()[-1].split(",")[1].split()[0])

    return with_processor_time(target, count * size / 1e6, run, label)


def java_consume(target: targets.Target, scale: float) -> Measurements:
    topic = "perf-1000-1-1-none"
    count = int(scale * 500_000)

    def run() -> float:
        output = targets.run_java_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--topic", topic, "--messages", str(count)),
            *("--bootstrap-server", target.bootstrap),
        )
        return float(output.strip().splitlines()[-1].split(",")[8])

    return with_processor_time(target, count / 1000, run, "Java consume 1000 B: MB/s")


def librdkafka_produce(target: targets.Target, scale: float) -> Measurements:
    clients.create_topic(target.bootstrap, "rd", 6)
    count = int(scale * 1_000_000)
    return with_processor_time(
        target,
        count / 10_000,
        lambda: clients.produce_records_per_s(target.bootstrap, "rd", count, 100, {"acks": "all"}),
        "librdkafka produce 100 B, 6 part., acks=all: records/s",
    )


def librdkafka_consume(target: targets.Target, scale: float) -> Measurements:
    topic = "perf-1000-1-1-none"
    count = int(scale * 500_000)
    return with_processor_time(
        target,
        count / 1000,
        lambda: clients.consume_megabytes_per_s(target.bootstrap, topic, 1, count),
        "librdkafka consume 1000 B: MB/s",
    )


def tiny(target: targets.Target, scale: float) -> Measurements:
    clients.create_topic(target.bootstrap, "tiny", 1)
    count = int(scale * 60_000)
    return {"tiny requests/s": clients.tiny_requests_per_s(target.bootstrap, "tiny", count)}


def latency(target: targets.Target, scale: float) -> Measurements:
    found: Measurements = {}
    for rate in (100, 1000, 10_000):
        topic = f"latency-{rate}"
        clients.create_topic(target.bootstrap, topic, 1)
        measured = clients.latencies_ms(target.bootstrap, topic, rate, max(2.0, 10 * scale))
        for percentile, value in measured.items():
            found[f"latency at {rate}/s, {percentile}: ms"] = value
    return found


WORKS = [
    Work("produce 1000", lambda target, scale: java_produce(target, scale, 1000, 1, "1", "none")),
    Work("produce 100", lambda target, scale: java_produce(target, scale, 100, 6, "all", "none")),
    Work(
        "produce 10000", lambda target, scale: java_produce(target, scale, 10_000, 1, "1", "none")
    ),
    Work("produce lz4", lambda target, scale: java_produce(target, scale, 1000, 1, "1", "lz4")),
    Work("produce many", lambda target, scale: java_produce(target, scale, 1000, 100, "1", "none")),
    Work("consume java", java_consume),
    Work("produce librdkafka", librdkafka_produce),
    Work("consume librdkafka", librdkafka_consume),
    Work("tiny", tiny),
    Work("latency", latency),
    Work("heartbeats", coordinators.heartbeats),
    Work("rebalance", coordinators.rebalance),
    Work("commits", coordinators.commits),
    Work("loading", coordinators.loading),
    Work("transactions", coordinators.transactional_produce),
]


def measure(target: targets.Target, works: list[Work], scale: float) -> Measurements:
    target.launch()
    try:
        found = {
            "start to first produce: s": clients.first_produce_s(
                target.bootstrap, target.started_at
            ),
        }
        found["resident after start: MB"] = target.resident_megabytes()
        for work in works:
            print(f"  {target.name}: {work.name}", flush=True)
            found.update(work.run(target, scale))
        found["resident after load: MB"] = target.resident_megabytes()
        return found
    finally:
        target.stop()


def run_rounds(works: list[Work], rounds: int, scale: float, with_kafka: bool) -> list[Figure]:
    collected: dict[str, dict[str, list[float]]] = {}
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
                    for name, value in measure(target, works, scale).items():
                        collected.setdefault(name, {}).setdefault(target.name, []).append(value)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return [
        Figure(
            name,
            statistics.median(values["ottla"]),
            statistics.median(values["kafka"]) if "kafka" in values else None,
        )
        for name, values in collected.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only lines whose name contains this")
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    works = [work for work in WORKS if arguments.only in work.name]
    with_kafka = not arguments.without_kafka and bool(shutil.which("java"))
    with_kafka = with_kafka and bool(apache_kafka.LIBRARY.exists() or shutil.which("mvn"))
    if not with_kafka:
        works = [work for work in works if not work.run.__name__.startswith(("java", "<lambda>"))]
        print(
            "Apache Kafka is not measured: that needs Java and Maven (or --without-kafka was set)"
        )
    print(machine.describe())
    rounds, scale = (1, 0.2) if arguments.quick else (arguments.rounds, 1.0)
    print_table(run_rounds(works, rounds, scale, with_kafka))


if __name__ == "__main__":
    main()
