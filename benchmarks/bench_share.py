"""`make bench-share`: share groups (KIP-932) of Ottla and Apache Kafka 4.3.1, in turn.

20 workers of one group on one partition, each with a connection of its own. Both brokers run at
the same time; each load warms both, then is measured in alternation. Only ratios of one run count.

    make bench-share
    make bench-share ARGUMENTS="--records 20000 --rounds 1"

- *records/s*: a worker fetches up to 500 records, and accepts them with its next fetch.
- *acknowledgements/s*: each record is acknowledged by itself, one of four rejected, ten at a time.
- *redelivery*: how long after the end of its lock (1 s) a record is with another worker that waits.
- *memory*: of 20 groups with 10,000 records in flight each, every second one released, so that
  adjacent records have different states. Kafka's is its heap after a collection.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks import machine, targets
from benchmarks.coordinators import Wire, connect, coordinator_of
from ottla.protocol.message import Message
from ottla.protocol.messages import alter_share_group_offsets as altering
from ottla.protocol.messages import share_acknowledge as acknowledging
from ottla.protocol.messages import share_fetch as fetching
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.records.builder import build_batch
from ottla.protocol.uuids import uuid_to_string
from tests.doubles.apache_kafka import is_available
from tests.doubles.kraft_kafka import VERSION, start_kraft

TOPIC = "jobs"
WORKERS = 20
RECORD_BYTES = 100
BATCH_RECORDS = 100
FETCH_RECORDS = 500
LOCK_MS = 1000
GROUPS = 20
# A record is lost so often by one group; after more deliveries fewer records are delivered at once.
LOSSES = 5
# Sets of groups in one round: 400 losses, so that p99 is not the time of the slowest one alone.
SETS = 4
IN_FLIGHT = 10_000
ACCEPT, RELEASE, REJECT = 1, 2, 3
READY_SECONDS = 120.0
WAIT_MS = 5000

# Of both brokers.
SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.partition.max.record.locks": str(IN_FLIGHT),
    "group.share.delivery.count.limit": "10",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# A worker must not lose its locks in the loads that do not measure them.
LONG_LOCKS = {"group.share.record.lock.duration.ms": "60000"}

# One batch is in flight: the worker that waits can get nothing but what the other one loses.
ONE_BATCH = {"group.share.partition.max.record.locks": str(BATCH_RECORDS)}

Figures = dict[str, float]


class Contestant(NamedTuple):
    """A running broker."""

    name: str
    bootstrap: str
    process: psutil.Process


class Group:
    """A share group that begins at the first record."""

    def __init__(self, bootstrap: str, group: str, topic_id: bytes) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic_id = topic_id

    async def begin(self, wire: Wire) -> None:
        row = altering.AlterShareGroupOffsetsRequestPartition(0, 0)
        topic = altering.AlterShareGroupOffsetsRequestTopic(TOPIC, [row])
        request = altering.AlterShareGroupOffsetsRequest(self.group, [topic])
        await _until(wire, request, 0, lambda response: not response.error_code)

    async def worker(self, number: int) -> Worker:
        wire = await connect(self.bootstrap)
        worker = Worker(wire, self, uuid_to_string(number.to_bytes(16)))
        await worker.join()
        return worker


class Worker:
    """One member; each request is built, each response decoded."""

    def __init__(self, wire: Wire, group: Group, member_id: str) -> None:
        self.wire = wire
        self.group = group
        self.member_id = member_id
        self._epoch = 0

    async def join(self) -> None:
        epoch = 0

        def is_assigned(response: Any) -> bool:
            nonlocal epoch
            if response.error_code:
                return False
            epoch = response.member_epoch
            assignment = response.assignment
            return assignment is not None and bool(assignment.topic_partitions)

        def request() -> Message:
            topics = None if epoch else [TOPIC]
            return ShareGroupHeartbeatRequest(
                self.group.group, self.member_id, epoch, subscribed_topic_names=topics
            )

        await _until(self.wire, request, 1, is_assigned)

    async def fetch(
        self,
        accepted: Sequence[tuple[int, int]] = (),
        max_records: int = FETCH_RECORDS,
        wait_ms: int = WAIT_MS,
    ) -> list[tuple[int, int]]:
        """The first and last offsets of what it acquires; `accepted` are such runs."""
        rows = [fetching.AcknowledgementBatch(*each, [ACCEPT]) for each in accepted]
        topics = []
        if rows or not self._epoch:
            partition = fetching.FetchPartition(0, acknowledgement_batches=rows)
            topics = [fetching.FetchTopic(self.group.topic_id, [partition])]
        request = fetching.ShareFetchRequest(
            *(self.group.group, self.member_id, self._epoch, wait_ms, 1, 1 << 20),
            *(max_records, max_records),
            topics=topics,
        )
        response: Any = await self.wire.call(request, 1)
        assert not response.error_code, response
        self._epoch += 1
        found = []
        for topic in response.responses:
            for row in topic.partitions:
                assert row.error_code == row.acknowledge_error_code == 0, row
                found += [(each.first_offset, each.last_offset) for each in row.acquired_records]
        return found

    async def acknowledge(self, first: int, types: list[int]) -> None:
        batch = acknowledging.AcknowledgementBatch(first, first + len(types) - 1, types)
        partition = acknowledging.AcknowledgePartition(0, [batch])
        topic = acknowledging.AcknowledgeTopic(self.group.topic_id, [partition])
        request = acknowledging.ShareAcknowledgeRequest(
            self.group.group, self.member_id, self._epoch, False, [topic]
        )
        response: Any = await self.wire.call(request, 1)
        self._epoch += 1
        assert not response.error_code, response
        for row in response.responses[0].partitions:
            assert not row.error_code, row

    def close(self) -> None:
        self.wire.close()


async def _until(
    wire: Wire,
    request: Message | Callable[[], Message],
    version: int,
    is_done: Callable[[Any], bool],
) -> Any:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        message = request() if callable(request) else request
        response = await wire.call(message, version)
        if is_done(response):
            return response
        assert time.monotonic() < deadline, response
        await asyncio.sleep(0.1)


async def prepare(contestant: Contestant, records: int) -> bytes:
    """The topic with its records; returns its id."""
    wire = await connect(contestant.bootstrap)
    await wire.call(CreateTopicsRequest(topics=[CreatableTopic(TOPIC, 1, 1)], timeout_ms=10_000), 5)

    def has_leader(response: Any) -> bool:
        (topic,) = response.topics
        return not topic.error_code and topic.partitions[0].leader_id >= 0

    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    response = await _until(wire, request, 12, has_leader)
    await coordinator_of(contestant.bootstrap, "ready")
    value = bytes(RECORD_BYTES)
    # Not a fixed time: retention would delete old records between two rounds.
    now_ms = int(time.time() * 1000)
    batch = build_batch([(now_ms, None, value, None)] * BATCH_RECORDS)
    data = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])
    for _ in range(0, records, BATCH_RECORDS):
        await wire.call(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[data]), 9)
    wire.close()
    topic_id: bytes = response.topics[0].topic_id
    return topic_id


class Load:
    """One kind of work; each call uses a group of its own."""

    def __init__(self, contestant: Contestant, topic_id: bytes, records: int) -> None:
        self.contestant = contestant
        self._topic_id = topic_id
        self._records = records
        self._number = 0

    async def group(self) -> Group:
        self._number += 1
        name = f"group-{self._number}"
        made = Group(self.contestant.bootstrap, name, self._topic_id)
        wire = await connect(self.contestant.bootstrap)
        await made.begin(wire)
        wire.close()
        return made

    async def _drained(self, work: Callable[[Worker], Coroutine[Any, Any, int]]) -> Figures:
        """All records, by all workers; `work` returns how many records a turn of it finished."""
        group = await self.group()
        workers = [await group.worker(number) for number in range(1, WORKERS + 1)]
        left = self._records
        # The first fetch loads the share partition.
        await asyncio.gather(*(worker.fetch(max_records=0, wait_ms=0) for worker in workers))

        async def turns(worker: Worker) -> None:
            nonlocal left
            while left > 0:
                done = await work(worker)  # others change `left` meanwhile
                left -= done

        used, begun = _processor_seconds(self.contestant), time.perf_counter()
        await asyncio.gather(*(turns(worker) for worker in workers))
        taken = time.perf_counter() - begun
        used = _processor_seconds(self.contestant) - used
        for worker in workers:
            worker.close()
        return {
            "/s": self._records / taken,
            " processor, µs a record": used / self._records * 1e6,
        }

    async def records(self) -> Figures:
        held: dict[Worker, list[tuple[int, int]]] = {}

        async def turn(worker: Worker) -> int:
            accepted = held.get(worker, [])
            held[worker] = await worker.fetch(accepted, wait_ms=200)
            return sum(last - first + 1 for first, last in accepted)

        return {f"records{name}": value for name, value in (await self._drained(turn)).items()}

    async def acknowledgements(self) -> Figures:
        async def turn(worker: Worker) -> int:
            done = 0
            for first, last in await worker.fetch(wait_ms=200):
                for offset in range(first, last + 1, 10):
                    count = min(10, last + 1 - offset)
                    types = [REJECT if each % 4 == 0 else ACCEPT for each in range(count)]
                    await worker.acknowledge(offset, types)
                    done += count
            return done

        found = await self._drained(turn)
        return {f"acknowledgements{name}": value for name, value in found.items()}

    async def redelivery(self) -> Figures:
        """Two workers in each of 20 groups lose a batch of records to each other in turn."""
        late: list[float] = []

        async def late_ms(group: Group) -> list[float]:
            workers = [await group.worker(number) for number in (1, 2)]
            found: list[float] = []
            acquired_s = 0.0
            for number in range(LOSSES + 1):
                rows = []
                while not rows:
                    rows = await workers[number % 2].fetch(max_records=1)
                now_s = time.perf_counter()
                if number:
                    found.append((now_s - acquired_s) * 1000 - LOCK_MS)
                acquired_s = now_s
            for worker in workers:
                worker.close()
            return found

        for _ in range(SETS):
            groups = [await self.group() for _ in range(GROUPS)]
            found = await asyncio.gather(*map(late_ms, groups))
            late.extend(each for rows in found for each in rows)
        late.sort()
        return {
            "redelivery p50, ms": statistics.median(late),
            "redelivery p99, ms": late[int(len(late) * 0.99)],
        }

    async def memory(self) -> Figures:
        before = _memory_bytes(self.contestant)
        workers = []
        for _ in range(GROUPS):
            group = await self.group()
            worker = await group.worker(1)
            workers.append(worker)
            count = 0
            while count < IN_FLIGHT:
                rows = await worker.fetch(max_records=FETCH_RECORDS)
                for first, last in rows:
                    types = [1 + each % 2 for each in range(last - first + 1)]
                    # The first record stays in flight, so the window does not move.
                    if first:
                        await worker.acknowledge(first, types)
                    count += last - first + 1
                if not rows:
                    break
        after = _memory_bytes(self.contestant)
        for worker in workers:
            worker.close()
        return {"memory, bytes a record in flight": (after - before) / (GROUPS * IN_FLIGHT)}


def _processor_seconds(contestant: Contestant) -> float:
    times = contestant.process.cpu_times()
    return float(times.user + times.system)


def _memory_bytes(contestant: Contestant) -> float:
    if contestant.name == "ottla":
        return float(contestant.process.memory_info().rss)
    pid = str(contestant.process.pid)
    subprocess.run(["jcmd", pid, "GC.run"], check=True, capture_output=True)
    shown = subprocess.run(
        ["jcmd", pid, "GC.heap_info"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"used (\d+)K", shown)
    assert found is not None, shown
    return int(found[1]) * 1024.0


@contextmanager
def _kafka(folder: Path, settings: dict[str, str]) -> Iterator[Contestant]:
    # A limit that Ottla does not have: its own is 10,000.
    settings = {**settings, "group.share.max.partition.max.record.locks": str(IN_FLIGHT)}
    given = {name.replace(".", "_"): value for name, value in settings.items()}
    options = targets.KAFKA_JVM_OPTIONS
    with start_kraft(folder, jvm_options=options, **given) as bootstrap:
        (process,) = (
            child
            for child in psutil.Process().children()
            if any("kraft.properties" in word for word in child.cmdline())
        )
        yield Contestant("kafka", bootstrap, process)


@contextmanager
def _ottla(folder: Path, settings: dict[str, str]) -> Iterator[Contestant]:
    protocols = {"group.coordinator.rebalance.protocols": "classic,consumer,share"}
    target = targets.Ottla(folder, {**settings, **protocols})
    target.launch()
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                asyncio.run(_connected(target.bootstrap))
                break
            except OSError:
                assert time.monotonic() < deadline, "Ottla did not start"
                time.sleep(0.1)
        assert target.process is not None
        yield Contestant("ottla", target.bootstrap, target.process)
    finally:
        target.stop()


async def _connected(bootstrap: str) -> None:
    (await connect(bootstrap)).close()


def run(
    kinds: Sequence[str], settings: dict[str, str], arguments: argparse.Namespace, folder: Path
) -> dict[str, dict[str, list[float]]]:
    """The figures of the warm rounds, by name and broker."""
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        contestants = [stack.enter_context(_ottla(folder / "ottla", settings))]
        if not arguments.without_kafka:
            contestants.append(stack.enter_context(_kafka(folder / "kafka", settings)))
        loads = []
        for contestant in contestants:
            topic_id = uvloop.run(prepare(contestant, arguments.records))
            loads.append(Load(contestant, topic_id, arguments.records))
        for kind in kinds:
            for number in range(arguments.warm_ups + arguments.rounds):
                for load in loads if number % 2 else reversed(loads):
                    figures = uvloop.run(getattr(load, kind)())
                    name = load.contestant.name
                    shown = ", ".join(f"{key} {value:,.1f}" for key, value in figures.items())
                    is_warm = kind == "memory" or number >= arguments.warm_ups
                    print(f"  {name}: {shown}{'' if is_warm else ' (warming up)'}", flush=True)
                    for key, value in figures.items() if is_warm else ():
                        found.setdefault(key, {}).setdefault(name, []).append(value)
                if kind == "memory":
                    break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each load")
    parser.add_argument("--warm-ups", type=int, default=3)
    parser.add_argument("--only", default="records,acknowledgements,redelivery,memory")
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    arguments.without_kafka |= not is_available()
    print(machine.describe())
    wanted = arguments.only.split(",")
    found: dict[str, dict[str, list[float]]] = {}
    for settings, all_kinds in (
        ({**SETTINGS, **LONG_LOCKS}, ("records", "acknowledgements", "memory")),
        ({**SETTINGS, **ONE_BATCH}, ("redelivery",)),
    ):
        kinds = tuple(kind for kind in all_kinds if kind in wanted)
        if kinds:
            folder = Path(tempfile.mkdtemp())
            try:
                found |= run(kinds, settings, arguments, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    print(f"\n| | Ottla | Kafka {VERSION} | ratio |\n|---|---|---|---|")
    for key, by_name in found.items():
        ours = statistics.median(by_name["ottla"])
        theirs = statistics.median(by_name["kafka"]) if "kafka" in by_name else None
        cells = "- | -" if theirs is None else f"{theirs:,.1f} | {ours / theirs:.2f}"
        print(f"| {key} | {ours:,.1f} | {cells} |")


if __name__ == "__main__":
    main()
