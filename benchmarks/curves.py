"""The measurements of `make bench-curves`: one broker at one point of a curve.

Each function creates the topics that it needs and returns figures by name. Topics of an earlier
round of the same point are used again.
"""

import argparse
import asyncio
import itertools
import json
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks import clients, coordinators, targets, wire
from benchmarks.kept import Figures
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

BATCH_BYTES = 16_000
FILL_BATCH_BYTES = 1_000_000
COMMIT_VERSION = 7
# Of the curves over partitions and groups.
CONNECTIONS = 10
HONEST_RATE = 100
HONEST_ADDRESS = "127.0.0.2"  # another one than that of the load, as of a client elsewhere
# The load is there before the small client begins, and after it has ended.
HONEST_PAUSE_S = 0.3
# A disk that takes less than 17 MB/s is no disk for this curve.
FILL_SECONDS_A_GIGABYTE = 60.0
TOPIC = "curve"
# Brokers, by address, and numbers of partitions whose partitions all have a record.
_APPENDED: set[tuple[str, int]] = set()


class Lane:
    """One connection with one request in flight; sends its frames again and again."""

    def __init__(self, bootstrap: str, frames: Sequence[bytes], source: str = "") -> None:
        self.sock = wire.connect(bootstrap, source)
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


class Driven(NamedTuple):
    """What a load got, and what it cost the broker from the first request to the last response."""

    responses: int
    received_bytes: int
    seconds: float
    processor_seconds: float
    resident_megabytes: float
    p99_ms: float


def drive(target: targets.Target, frames: Sequence[Sequence[bytes]], seconds: float) -> Driven:
    """One connection for each element, for so long. No request is sent afterwards."""
    poll = select.epoll()
    with ExitStack() as stack:
        stack.callback(poll.close)
        lanes = {}
        for each in frames:
            lane = Lane(target.bootstrap, each)
            stack.callback(lane.sock.close)
            lanes[lane.sock.fileno()] = lane
            poll.register(lane.sock.fileno(), select.EPOLLIN)
        used = -target.processor_seconds()
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
        used += target.processor_seconds()
        p99 = sorted(times)[len(times) * 99 // 100] * 1000
        return Driven(len(times), received, elapsed, used, target.resident_megabytes(), p99)


def produced(driven: Driven) -> Figures:
    gigabytes = driven.responses * BATCH_BYTES / 1e9
    return {
        "MB/s": gigabytes * 1000 / driven.seconds,
        "CPU s per GB": driven.processor_seconds / gigabytes,
        "p99 ms": driven.p99_ms,
        "resident MB": driven.resident_megabytes,
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
    return produced(drive(target, frames, seconds))


def over_partitions(target: targets.Target, value: int, seconds: float) -> Figures:
    """Batches of 16 KB to one partition after the other, over ten connections.

    In the first round each partition gets records before anything is measured: Kafka is still
    creating logs long after the topic has leaders, a first append writes a checkpoint, and the
    first entries of the indexes create them.
    """
    create_topic(target, TOPIC, value)
    if (target.bootstrap, value) not in _APPENDED:
        clients.append_to_each(target.bootstrap, TOPIC, value)
        _APPENDED.add((target.bootstrap, value))
    batch = wire.records(16, 1000)
    frames = [
        [wire.produce_frame(TOPIC, each, batch) for each in range(first, value, CONNECTIONS)]
        for first in range(min(CONNECTIONS, value))
    ]
    return produced(drive(target, frames, seconds))


def over_groups(target: targets.Target, value: int, seconds: float) -> Figures:
    """Commits of one offset, of one group after the other, over ten connections."""
    asyncio.run(coordinators.coordinator_of(target.bootstrap, "ready"))
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
    driven = drive(target, frames, seconds)
    return {
        "commits/s": driven.responses / driven.seconds,
        "CPU us each": driven.processor_seconds / driven.responses * 1e6,
        "p99 ms": driven.p99_ms,
        "resident MB": driven.resident_megabytes,
    }


def over_log_sizes(target: targets.Target, value: int, seconds: float) -> Figures:
    """A partition of so many GB: writing it, then its end, and reading it from the beginning."""
    create_topic(target, TOPIC, 1)
    large = wire.produce_frame(TOPIC, 0, wire.records(FILL_BATCH_BYTES // 10_000, 10_000))
    begun, written = time.perf_counter(), 0.0
    deadline = begun + value * FILL_SECONDS_A_GIGABYTE
    while written < value * 1e9:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"only {written / 1e9:.1f} of {value} GB were written in time")
        written += drive(target, [[large]], 1.0).responses * FILL_BATCH_BYTES
    filled = time.perf_counter() - begun
    small = wire.produce_frame(TOPIC, 0, wire.records(1, 100))
    tail = drive(target, [[small]], seconds)
    records = int(written) // 10_000
    places = [records * each // 1000 for each in range(1000)]
    requests = [wire.fetch_request(TOPIC, 0, each) for each in places]
    fetches = [encode_request(1, "bench", each, wire.FETCH_VERSION) for each in requests]
    read = drive(target, [fetches], seconds)
    return {
        "filled MB/s": written / 1e6 / filled,
        "append p99 ms": tail.p99_ms,
        "fetch MB/s": read.received_bytes / 1e6 / read.seconds,
        "fetch p99 ms": read.p99_ms,
        "resident MB": read.resident_megabytes,
    }


def saturation(target: targets.Target, value: int, seconds: float) -> Figures:
    """A client of 100 small records a second, beside so many connections that send all they can."""
    create_topic(target, TOPIC, 6)
    create_topic(target, "honest", 1)
    command = [sys.executable, "-m", "benchmarks.curves", "--honest", target.bootstrap]
    with subprocess.Popen(
        [*command, "--seconds", str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as honest:
        assert honest.stdin is not None
        assert honest.stdout is not None
        batch = wire.records(16, 1000)
        frames = [[wire.produce_frame(TOPIC, each % 6, batch)] for each in range(value)]
        honest.stdout.readline()  # it is connected
        honest.stdin.write("begin\n")
        honest.stdin.flush()
        driven = drive(target, frames, 2 * HONEST_PAUSE_S + seconds)
        output = honest.communicate(timeout=wire.DEADLINE_S)[0]
    small: dict[str, float] = json.loads(output)
    return {
        "goodput MB/s": driven.responses * BATCH_BYTES / 1e6 / driven.seconds,
        "load p99 ms": driven.p99_ms,
        "small client p50 ms": small["p50"],
        "small client p99 ms": small["p99"],
    }


def run_honest(bootstrap: str, seconds: float) -> None:
    """Prints the percentiles of response times as JSON; a process of its own beside the load."""
    frame = wire.produce_frame("honest", 0, wire.records(1, 100))
    lane = Lane(bootstrap, [frame], HONEST_ADDRESS)
    times = []
    print("connected", flush=True)
    sys.stdin.readline()
    time.sleep(HONEST_PAUSE_S)
    begun = time.perf_counter()
    for turn in range(int(seconds * HONEST_RATE)):
        now = time.perf_counter()
        if now > begun + seconds:
            break  # it is behind: each request takes longer than until the next one is due
        time.sleep(max(0.0, begun + turn / HONEST_RATE - now))
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
    #: Its points are too costly for rounds that are not counted, and for more than one.
    is_costly: bool = False


CURVES = [
    Curve("connections", (1, 10, 100, 1_000, 5_000), 2, over_connections),
    Curve("partitions", (1, 10, 100, 1_000, 10_000), 3, over_partitions),
    Curve("groups", (1, 10, 100, 1_000), 3, over_groups),
    Curve("saturation", (1, 10, 100, 1_000), 2, saturation),
    Curve("gigabytes", (1, 3, 10, 30, 100), 1, over_log_sizes, is_costly=True),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="The small client of the curve `saturation`.")
    parser.add_argument("--honest", metavar="ADDRESS", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    run_honest(arguments.honest, arguments.seconds)


if __name__ == "__main__":
    main()
