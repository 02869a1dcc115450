"""`make bench-curves`: throughput, processor time, response time and memory over growing load.

Each curve changes one number: connections, partitions, groups, gigabytes in a log, or connections
of a load beside a small client (saturation). At each point both brokers are measured in turn, after
one round that is not counted; then the topics are deleted. Prints Markdown, a table a curve.

    make bench-curves                                       about an hour with Kafka
    make bench-curves ARGUMENTS="--only groups --without-kafka"
    make bench-curves ARGUMENTS=--quick                     the small end of each curve
"""

import argparse
import asyncio
import itertools
import json
import resource
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import clients, coordinators, machine, targets, wire
from benchmarks.bench import CACHE, delete_written
from benchmarks.report import number
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.doubles import apache_kafka

Figures = dict[str, float]
BATCH_BYTES = 16_000
FILL_BATCH_BYTES = 1_000_000
COMMIT_VERSION = 7
# Of the curves over partitions and groups.
CONNECTIONS = 10
HONEST_RATE = 100
TOPIC = "curve"


class Lane:
    """One connection with one request in flight; sends its frames again and again."""

    def __init__(self, bootstrap: str, frames: Sequence[bytes]) -> None:
        self.sock = wire.connect(bootstrap)
        self._frames = itertools.cycle(frames)
        self._sent_at = 0.0
        self._left = 0
        self._size = b""

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self.sock.sendall(next(self._frames))

    def receive(self) -> tuple[int, float | None]:
        """(bytes received, seconds since the request if its response is complete)."""
        part = self.sock.recv(self._left or 4 - len(self._size))
        if not part:
            raise ConnectionError("the broker closed the connection")
        if self._left:
            self._left -= len(part)
            return len(part), None if self._left else time.perf_counter() - self._sent_at
        self._size += part
        if len(self._size) == 4:
            self._left, self._size = int.from_bytes(self._size), b""
        return len(part), None


def drive(bootstrap: str, frames: Sequence[Sequence[bytes]], seconds: float) -> Figures:
    """One connection for each element. Responses, bytes received, response times."""
    poll = select.epoll()
    with ExitStack() as stack:
        stack.callback(poll.close)
        lanes = {}
        for each in frames:
            lane = Lane(bootstrap, each)
            stack.callback(lane.sock.close)
            lanes[lane.sock.fileno()] = lane
            poll.register(lane.sock.fileno(), select.EPOLLIN)
        begun = time.perf_counter()
        for lane in lanes.values():
            lane.send()
        received, times = 0, []
        open_requests = len(lanes)
        while open_requests and time.perf_counter() < begun + seconds + wire.DEADLINE_S:
            for descriptor, _ in poll.poll(1.0):
                size, taken = lanes[descriptor].receive()
                received += size
                if taken is None:
                    continue
                times.append(taken)
                if time.perf_counter() < begun + seconds:
                    lanes[descriptor].send()
                else:
                    open_requests -= 1
        elapsed = time.perf_counter() - begun
    return {
        "responses": float(len(times)),
        "received": float(received),
        "seconds": elapsed,
        "p50": statistics.median(times) * 1000,
        "p99": sorted(times)[len(times) * 99 // 100] * 1000,
    }


@contextmanager
def processor_seconds(target: targets.Target, found: list[float]) -> Iterator[None]:
    before = target.processor_seconds()
    yield
    found.append(target.processor_seconds() - before)


def produced(target: targets.Target, driven: Figures, used: float, request_bytes: int) -> Figures:
    gigabytes = driven["responses"] * request_bytes / 1e9
    return {
        "MB/s": gigabytes * 1000 / driven["seconds"],
        "CPU s per GB": used / gigabytes,
        "p99 ms": driven["p99"],
        "resident MB": target.resident_megabytes(),
    }


def create_topic(target: targets.Target, topic: str, partitions: int) -> None:
    """Returns when its partitions have leaders: the client here does not look at error codes."""
    clients.create_topic(target.bootstrap, topic, partitions)
    for partition in (0, partitions - 1):
        batch = wire.records(1, 10)
        wire.check(target.bootstrap, wire.produce_request(topic, partition, batch))


def over_connections(target: targets.Target, value: int, seconds: float) -> Figures:
    """Batches of 16 KB to six partitions, one in flight a connection."""
    create_topic(target, TOPIC, 6)
    batch = wire.records(16, 1000)
    frames = [[wire.produce_frame(TOPIC, each % 6, batch)] for each in range(value)]
    used: list[float] = []
    with processor_seconds(target, used):
        driven = drive(target.bootstrap, frames, seconds)
    return produced(target, driven, used[0], BATCH_BYTES)


def over_partitions(target: targets.Target, value: int, seconds: float) -> Figures:
    """Batches of 16 KB to one partition after the other, over ten connections."""
    create_topic(target, TOPIC, value)
    batch = wire.records(16, 1000)
    frames = [
        [wire.produce_frame(TOPIC, each, batch) for each in range(first, value, CONNECTIONS)]
        for first in range(min(CONNECTIONS, value))
    ]
    used: list[float] = []
    with processor_seconds(target, used):
        driven = drive(target.bootstrap, frames, seconds)
    return produced(target, driven, used[0], BATCH_BYTES)


def over_groups(target: targets.Target, value: int, seconds: float) -> Figures:
    """Commits of one offset, of one group after the other, over ten connections."""
    asyncio.run(coordinators.wait_for_coordinator(target.bootstrap))
    create_topic(target, TOPIC, 1)
    topic = OffsetCommitRequestTopic(TOPIC, [OffsetCommitRequestPartition(0, 1)])
    with wire.connect(target.bootstrap) as sock:
        request = OffsetCommitRequest("curve-0", topics=[topic])
        response = wire.call(sock, request, COMMIT_VERSION)
        assert isinstance(response, OffsetCommitResponse)
        assert response.topics[0].partitions[0].error_code == 0, response
    frames = [
        [
            encode_request(
                1,
                "bench",
                OffsetCommitRequest(f"curve-{each}", topics=[topic]),
                COMMIT_VERSION,
            )
            for each in range(first, value, CONNECTIONS)
        ]
        for first in range(min(CONNECTIONS, value))
    ]
    used: list[float] = []
    with processor_seconds(target, used):
        driven = drive(target.bootstrap, frames, seconds)
    return {
        "commits/s": driven["responses"] / driven["seconds"],
        "CPU us each": used[0] / driven["responses"] * 1e6,
        "p99 ms": driven["p99"],
        "resident MB": target.resident_megabytes(),
    }


def over_log_sizes(target: targets.Target, value: int, seconds: float) -> Figures:
    """A partition of so many GB: writing it, then its end, and reading it from the beginning."""
    create_topic(target, TOPIC, 1)
    large = wire.produce_frame(TOPIC, 0, wire.records(FILL_BATCH_BYTES // 10_000, 10_000))
    begun, written = time.perf_counter(), 0.0
    while written < value * 1e9:
        written += drive(target.bootstrap, [[large]], 1.0)["responses"] * FILL_BATCH_BYTES
    filled = time.perf_counter() - begun
    small = wire.produce_frame(TOPIC, 0, wire.records(1, 100))
    tail = drive(target.bootstrap, [[small]], seconds)
    records = int(written) // 10_000
    places = [records * each // 1000 for each in range(1000)]
    requests = [wire.fetch_request(TOPIC, 0, each) for each in places]
    fetches = [encode_request(1, "bench", each, wire.FETCH_VERSION) for each in requests]
    read = drive(target.bootstrap, [fetches], seconds)
    return {
        "filled MB/s": written / 1e6 / filled,
        "append p99 ms": tail["p99"],
        "fetch MB/s": read["received"] / 1e6 / read["seconds"],
        "fetch p99 ms": read["p99"],
        "resident MB": target.resident_megabytes(),
    }


def saturation(target: targets.Target, value: int, seconds: float) -> Figures:
    """A client of 100 small records a second, beside so many connections that send all they can."""
    create_topic(target, TOPIC, 6)
    create_topic(target, "honest", 1)
    command = [sys.executable, "-m", "benchmarks.bench_curves", "--honest", target.bootstrap]
    with subprocess.Popen(
        [*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True
    ) as honest:
        batch = wire.records(16, 1000)
        frames = [[wire.produce_frame(TOPIC, each % 6, batch)] for each in range(value)]
        driven = drive(target.bootstrap, frames, seconds + 1.0)
        output = honest.communicate(timeout=wire.DEADLINE_S)[0]
    small: dict[str, float] = json.loads(output)
    return {
        "goodput MB/s": driven["responses"] * BATCH_BYTES / 1e6 / driven["seconds"],
        "load p99 ms": driven["p99"],
        "small client p50 ms": small["p50"],
        "small client p99 ms": small["p99"],
    }


def run_honest(bootstrap: str, seconds: float) -> None:
    """Prints the percentiles of response times as JSON; a process of its own beside the load."""
    frame = wire.produce_frame("honest", 0, wire.records(1, 100))
    lane = Lane(bootstrap, [frame])
    times = []
    begun = time.perf_counter()
    for turn in range(int(seconds * HONEST_RATE)):
        time.sleep(max(0.0, begun + turn / HONEST_RATE - time.perf_counter()))
        lane.send()
        taken = None
        while taken is None:
            taken = lane.receive()[1]
        times.append(taken * 1000)
    found = {"p50": statistics.median(times), "p99": sorted(times)[len(times) * 99 // 100]}
    print(json.dumps(found))


class Curve(NamedTuple):
    """What it changes, and the points, the first `short` of which are those of `--quick`."""

    name: str
    points: tuple[int, ...]
    short: int
    measure: Callable[[targets.Target, int, float], Figures]


CURVES = [
    Curve("connections", (1, 10, 100, 1_000, 5_000), 2, over_connections),
    Curve("partitions", (1, 10, 100, 1_000, 10_000), 3, over_partitions),
    Curve("groups", (1, 10, 100, 1_000), 3, over_groups),
    Curve("gigabytes", (1, 3, 10, 30, 100), 1, over_log_sizes),
    Curve("saturation", (1, 4, 16, 64, 256, 1_000), 2, saturation),
]


def points(curve: Curve, arguments: argparse.Namespace, folder: Path) -> list[int]:
    """Without log sizes for which the disk has not three times the room, or that are not wanted."""
    wanted = list(curve.points[: curve.short] if arguments.quick else curve.points)
    if curve.name == "gigabytes":
        room = shutil.disk_usage(folder).free // 3_000_000_000
        wanted = [each for each in wanted if each <= min(arguments.gigabytes, room)]
    return wanted


def table(curve: Curve, rows: dict[int, dict[str, Figures]]) -> str:
    names = list(next(iter(rows.values())))
    columns = list(next(iter(next(iter(rows.values())).values())))
    head = [curve.name, *(f"{name}: {column}" for column in columns for name in names)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for point, found in rows.items():
        cells = [number(found[name].get(column)) for column in columns for name in names]
        lines.append(f"| {' | '.join([f'{point:,}', *cells])} |")
    return "\n".join(lines)


def run(arguments: argparse.Namespace, folder: Path) -> list[str]:
    contestants: list[targets.Target] = [targets.Ottla(folder / "ottla", {})]
    texts = []
    with ExitStack() as stack:
        if apache_kafka.is_available() and not arguments.without_kafka:
            zookeeper = stack.enter_context(apache_kafka.start_zookeeper(folder))
            contestants.append(targets.Kafka(folder / "kafka", {}, zookeeper))
        for target in contestants:
            stack.callback(target.stop)
            target.launch()
            clients.first_produce_s(target.bootstrap, target.started_at)
        for curve in CURVES:
            if not any(part in curve.name for part in arguments.only.split(",")):
                continue
            rows: dict[int, dict[str, Figures]] = {}
            for point in points(curve, arguments, folder):
                print(f"{curve.name} {point:,}", file=sys.stderr, flush=True)
                if curve.name != "gigabytes":
                    for target in contestants:  # not counted
                        curve.measure(target, point, arguments.seconds)
                rows[point] = {
                    target.name: curve.measure(target, point, arguments.seconds)
                    for target in contestants
                }
                delete_written(contestants)
            if rows:
                texts.append(table(curve, rows))
                print(f"{texts[-1]}\n", flush=True)
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small end of each curve")
    parser.add_argument("--only", default="", help="only these curves: A,B")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--gigabytes", type=int, default=10, help="the largest log")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--output", type=Path, default=CACHE / "curves.md")
    parser.add_argument("--honest", metavar="ADDRESS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.honest:
        run_honest(arguments.honest, arguments.seconds)
        return
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    print(f"{machine.describe()}\n")
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE))
    try:
        texts = run(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    arguments.output.write_text("\n\n".join([machine.describe(), *texts]) + "\n")


if __name__ == "__main__":
    main()
