"""`make bench-cluster`: three brokers of Ottla beside three of Apache Kafka 3.9.1, on one machine.

Each cluster has a ZooKeeper of its own. Replicated produce (acks=all, three replicas) is measured
with both clusters running, in alternation: two rounds that warm them, then the medians of three.
What a controller does with many partitions ends with a broker that is gone, so each of these
clusters runs alone: creating 1,000 partitions (after 1,000 that warm it), failing 1,000 over, being
elected with 5,000, and letting 300 leaders go. Each is measured once, and again, three times at
the most, until 15 minutes are over. Each round is kept on disk at once:

    make bench-cluster
    make bench-cluster ARGUMENTS=--missing             go on where a run was stopped
    make bench-cluster ARGUMENTS="--missing --page"    and write docs/performance.md
    make bench-cluster ARGUMENTS="--only failover --without-kafka"
    make bench-cluster ARGUMENTS=--quick               fewer records, one round
    make bench-cluster ARGUMENTS="--only produce --profile"    and sample one more round of Ottla
"""

import argparse
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine, profiles
from benchmarks.bench import CACHE
from benchmarks.cluster import WORKS, Cluster, replicated_produce, running
from benchmarks.kept import Kept
from benchmarks.page import PERFORMANCE, replace_block
from benchmarks.report import Figure, row_of
from tests.doubles import apache_kafka

PRODUCE = "produce"
WARM_ROUNDS = 2
QUICK_SCALE = 0.2


def produce_in_turn(kinds: list[str], arguments: argparse.Namespace, kept: Kept) -> None:
    """Rounds of both clusters, which run at the same time, until each has enough."""
    warm_rounds = 1 if arguments.quick else WARM_ROUNDS
    with ExitStack() as stack:
        clusters = [stack.enter_context(running(kind)) for kind in kinds]
        turn = 0
        while any(kept.count(PRODUCE, kind) < arguments.rounds for kind in kinds):
            for cluster in clusters if turn % 2 else reversed(clusters):
                found = replicated_produce(cluster, QUICK_SCALE if arguments.quick else 1.0)
                print(f"  {cluster.kind}: round {turn + 1}: {found}", file=sys.stderr, flush=True)
                if turn >= warm_rounds and kept.count(PRODUCE, cluster.kind) < arguments.rounds:
                    kept.add(PRODUCE, cluster.kind, found)
            turn += 1
        if arguments.profile:
            profile_produce(clusters[0], arguments)


def profile_produce(cluster: Cluster, arguments: argparse.Namespace) -> None:
    """One more round, whose figures do not count; the profile of all three brokers together."""
    pids = [each.process.pid for each in cluster.brokers.values() if each.process is not None]
    with profiles.sampled(pids) as found:
        replicated_produce(cluster, QUICK_SCALE if arguments.quick else 1.0)
    text = profiles.table({"replicated produce": found[0]})
    print(text)
    arguments.output.with_suffix(".profile.md").write_text(text + "\n")


def work_once(name: str, kind: str, kept: Kept) -> None:
    begun = time.perf_counter()
    with running(kind) as cluster:
        found = WORKS[name](cluster)
    taken = time.perf_counter() - begun
    print(f"  {kind}: {name}, {taken:.0f} s: {found}", file=sys.stderr, flush=True)
    kept.add(name, kind, found)


def run(kinds: list[str], arguments: argparse.Namespace, kept: Kept) -> None:
    """Produce first; then every work once before any is measured again."""
    deadline = time.perf_counter() + arguments.minutes * 60
    parts = arguments.only.split(",")
    names = [name for name in (PRODUCE, *WORKS) if any(part in name for part in parts)]
    if PRODUCE in names and any(kept.count(PRODUCE, kind) < arguments.rounds for kind in kinds):
        try:
            produce_in_turn(kinds, arguments, kept)
        except Exception:
            print(f"{PRODUCE} FAILED\n{traceback.format_exc()}", file=sys.stderr)
    for number in range(arguments.rounds):
        for name in names:
            for kind in kinds if number % 2 == 0 else kinds[::-1]:
                if name == PRODUCE or kept.count(name, kind) > number:
                    continue
                if time.perf_counter() > deadline:
                    print(f"round {number + 1} of {kind}: {name} and more: the time has ended")
                    return
                try:
                    work_once(name, kind, kept)
                except Exception:
                    print(f"{kind}: {name} FAILED\n{traceback.format_exc()}", file=sys.stderr)


def table(kept: Kept) -> str:
    """The medians as Markdown, with the least and the greatest of several rounds."""
    lines = ["| what | Ottla | Kafka 3.9.1 | ratio | rounds | aim |", "|---|---|---|---|---|---|"]
    for line in (PRODUCE, *WORKS):
        ottla, kafka = kept.medians(line, "ottla"), kept.medians(line, "kafka")
        apart, kafka_apart = kept.spreads(line, "ottla"), kept.spreads(line, "kafka")
        rounds = f"{kept.count(line, 'ottla')} and {kept.count(line, 'kafka')}"
        for name in dict.fromkeys([*ottla, *kafka]):
            medians, spreads = (ottla.get(name), kafka.get(name)), (apart, kafka_apart)
            row = row_of(Figure(name, *medians, *(each.get(name) for each in spreads)))
            cells = [row.name, row.ottla, row.kafka, row.ratio, rounds, row.aim]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records, one round")
    parser.add_argument(
        "--only", default="", help=f"only these: A,B of {PRODUCE}, {', '.join(WORKS)}"
    )
    parser.add_argument("--missing", action="store_true", help="keep what was measured before")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each at the most")
    parser.add_argument("--minutes", type=float, default=15.0, help="begin nothing after that")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--without-ottla", action="store_true")
    parser.add_argument("--output", type=Path, default=CACHE / "cluster.md")
    parser.add_argument("--profile", action="store_true", help="sample one more round of produce")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md as well")
    arguments = parser.parse_args()
    if arguments.profile:
        profiles.check_available()
    if arguments.quick:
        arguments.rounds = 1
    kinds = [] if arguments.without_ottla else ["ottla"]
    if not arguments.without_kafka:
        if apache_kafka.is_available():
            kinds.append("kafka")
        else:
            print("Apache Kafka is not measured: that needs Java and Maven")
    machine.end_on_sigterm()
    kept = Kept(arguments.output.with_suffix(".json"), continues=arguments.missing)
    kept.begin(machine.describe())
    run(kinds, arguments, kept)
    text = f"{'; '.join(kept.runs)}.\n\n{table(kept)}"
    arguments.output.write_text(text + "\n")
    print(text)
    if arguments.page:
        replace_block(PERFORMANCE, "three brokers", text)


if __name__ == "__main__":
    main()
