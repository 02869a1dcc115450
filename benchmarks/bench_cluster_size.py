"""`python -m benchmarks.bench_cluster_size`: what a growing cluster costs, beside Apache Kafka's.

For each kind and number of brokers one cluster: idle without and with topics, topics created, a
broker lost and back. Processor time is that of all brokers. The largest cluster gives the cost of a
peer, and that a model of larger clusters. `--page` writes both into
docs/limits.md. `--kinds ottla` needs no Java; `--brokers 3,8,20` are other sizes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine
from benchmarks.cluster import Cluster
from benchmarks.page import replace_block
from ottla.protocol.messages.metadata import MetadataResponse
from tests.doubles.zookeeper_process import start_zookeeper

PAGE = Path(__file__).resolve().parents[1] / "docs" / "limits.md"
REPLICAS = 3
PARTITIONS_OF_TOPIC = 100
# Of a partition with three replicas in UpdateMetadata 8: 48 bytes, 4 more for a replica that is
# offline, and its part of the name and id of the topic.
STATE_BYTES = 55
SETTLE_S = 8.0


class Point(NamedTuple):
    """Of one cluster. Times of the processor are those of all brokers together."""

    kind: str
    brokers: int
    partitions: int
    idle_empty_ms: float  # a second and a broker
    idle_ms: float
    create_ms: float  # a partition
    lost_s: float  # until each partition has a leader, with the session timeout
    lost_ms: float  # a partition of the broker
    back_s: float  # until it is in all ISRs
    back_ms: float  # a replica of the broker
    megabytes: float  # a broker


def idle(cluster: Cluster, seconds: float) -> float:
    time.sleep(SETTLE_S)
    used = cluster.processor_seconds()
    time.sleep(seconds)
    return (cluster.processor_seconds() - used) / seconds / len(cluster.brokers) * 1000


def is_whole(response: MetadataResponse, partitions: int) -> bool:
    rows = [row for topic in response.topics for row in topic.partitions if topic.name[:1] != "_"]
    return len(rows) == partitions and all(
        row.leader_id >= 0 and len(row.isr_nodes) == len(row.replica_nodes) for row in rows
    )


def is_led_without(response: MetadataResponse, lost: int) -> bool:
    leaders = [row.leader_id for topic in response.topics for row in topic.partitions]
    return lost not in leaders and -1 not in leaders


def measure(cluster: Cluster, partitions: int, seconds: float) -> Point:
    ids = tuple(cluster.brokers)
    count = len(ids)

    def used(work: Callable[[], object]) -> float:
        before = cluster.processor_seconds()
        work()
        return (cluster.processor_seconds() - before) * 1000

    def create() -> None:
        for first in range(0, partitions, PARTITIONS_OF_TOPIC):
            rows = [
                tuple(ids[(number + each) % count] for each in range(REPLICAS))
                for number in range(first, min(first + PARTITIONS_OF_TOPIC, partitions))
            ]
            cluster.create(f"topic-{first}", rows)
        cluster.wait_for_metadata(lambda found: is_whole(found, partitions), ids)

    idle_empty = idle(cluster, seconds)
    create_ms = used(create)
    idle_ms = idle(cluster, seconds)
    megabytes = sum(each.resident_megabytes() for each in cluster.brokers.values()) / count
    lost = next(each for each in ids if each != cluster.controller())
    others = tuple(each for each in ids if each != lost)
    victim = cluster.brokers.pop(lost)
    assert victim.process is not None
    victim.process.kill()
    begun = time.perf_counter()
    before = cluster.processor_seconds()
    ended = cluster.wait_for_metadata(lambda found: is_led_without(found, lost), others)
    lost_ms = (cluster.processor_seconds() - before) * 1000
    victim.stop()
    before = cluster.processor_seconds()
    victim.launch()
    cluster.brokers[lost] = victim
    back = cluster.wait_for_metadata(lambda found: is_whole(found, partitions), ids)
    back_ms = (cluster.processor_seconds() - before) * 1000
    return Point(
        cluster.kind,
        count,
        partitions,
        idle_empty,
        idle_ms,
        create_ms / partitions,
        ended - begun,
        lost_ms / (partitions / count),
        back - victim.started_at,
        back_ms / (partitions * REPLICAS / count),
        megabytes,
    )


def table(points: list[Point]) -> str:
    """The curves: a line for each cluster."""
    lines = [
        "| brokers | partitions | idle, empty | idle | created | leaders lost | until led | back | "
        "until in sync | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.brokers} of {each.kind.capitalize()} | {each.partitions} "
        f"| {each.idle_empty_ms:.1f} ms/s | {each.idle_ms:.1f} ms/s | {each.create_ms:.2f} ms "
        f"| {each.lost_ms:.2f} ms | {each.lost_s:.1f} s | {each.back_ms:.2f} ms "
        f"| {each.back_s:.1f} s | {each.megabytes:.0f} MB |"
        for each in points
    ]
    return "\n".join(lines)


def model(points: list[Point]) -> str:
    """What larger clusters of Ottla cost, by the cost of a peer and the bytes of a partition."""
    large = max((each for each in points if each.kind == "ottla"), key=lambda each: each.brokers)
    # Replication begins with the first partition, and nothing else does.
    of_peer = max(0.0, large.idle_ms - large.idle_empty_ms) / (large.brokers - 1)
    lines = [
        "| cluster | idle broker | requests when a broker returns |",
        "|---|---|---|",
    ]
    for brokers, partitions in ((100, 100_000), (1000, 1_000_000)):
        led = partitions / brokers
        full = partitions * STATE_BYTES
        told = 2 * brokers * led * REPLICAS * STATE_BYTES
        lines.append(
            f"| {brokers} brokers, {partitions:,} partitions "
            f"| {large.idle_empty_ms + of_peer * (brokers - 1):.0f} ms/s "
            f"| {full / 1e6:.0f} MB to it, {told / 1e6:,.0f} MB to the others |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--brokers", default="3,8")
    parser.add_argument("--kinds", default="ottla,kafka")
    parser.add_argument("--partitions", type=int, default=100, help="for each broker")
    parser.add_argument("--seconds", type=float, default=20.0, help="of idle time")
    parser.add_argument("--page", action="store_true", help="write docs/limits.md")
    arguments = parser.parse_args()
    machine.end_on_sigterm()
    points: list[Point] = []
    for kind in arguments.kinds.split(","):
        for count in map(int, arguments.brokers.split(",")):
            folder = Path(tempfile.mkdtemp())
            try:
                with start_zookeeper(folder / "zookeeper") as zookeeper:
                    ids = tuple(range(1, count + 1))
                    cluster = Cluster(kind, folder, zookeeper.connect, ids)
                    try:
                        cluster.start()
                        found = measure(cluster, arguments.partitions * count, arguments.seconds)
                    finally:
                        cluster.stop()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            points.append(found)
            print(table([found]).splitlines()[-1], flush=True)
    text = f"{machine.describe()}\n\n{table(points)}\n\n{model(points)}"
    print(f"\n{text}")
    if arguments.page:
        replace_block(PAGE, "cluster size", text)


if __name__ == "__main__":
    main()
