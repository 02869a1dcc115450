"""A model of Spark around the exactly-once sink: processes that crash at any of their requests.

A run writes some batches. Each execution of a batch divides the rows over tasks in another way.
Processes crash before a request is sent or after the broker has carried it out, chosen by the seed:
one of a task (which is retried) or the driver's (the batch is executed again, by a new driver).
Some tasks run twice, as with speculation, and the twin that loses may go on after the end of its
batch.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from ottla.protocol.client.blocking import Begun, BlockingClient
from ottla.protocol.client.operations import Send
from ottla.protocol.message import Message
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import client_of, cluster_of
from pyspark_ottla.offsets import LATEST, OffsetRange
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.options.sink_options import SinkOptions, parse_sink_options
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.task import read_range
from pyspark_ottla.write import two_phase_commit
from pyspark_ottla.write.decisions import TaskResult, Write
from pyspark_ottla.write.repeated_writes import target_of
from pyspark_ottla.write.two_phase_commit import BatchCommit
from pyspark_ottla.write.writing import write_task
from tests.doubles.eventually import eventually

T = TypeVar("T")

PARTITIONS = 3
ATTEMPTS = 4


class CrashError(BaseException):
    """The process is dead: nothing that it does after this reaches a broker."""


@dataclass
class Process:
    """What a Python process of Spark sends; it dies at request `dies_at`, counted from 0."""

    dies_at: int = -1
    after: bool = False
    sent: list[str] = field(default_factory=list)
    is_dead: bool = False

    def carry_out(self, request: Message, send: Callable[[], T]) -> T:
        """Sends the request, unless the process is dead or dies before; can die after it."""
        if self.is_dead:
            raise CrashError
        is_last = len(self.sent) == self.dies_at
        self.sent.append(type(request).__name__.removesuffix("Request"))
        self.is_dead = is_last
        if is_last and not self.after:
            raise CrashError
        response = send()
        if is_last:
            raise CrashError
        return response


class Spark:
    """Executes batches as Spark does; `steps` are the requests at which something died."""

    def __init__(
        self, bootstrap: str, topic: str, name: str, seed: int, patch: pytest.MonkeyPatch
    ) -> None:
        self._random = random.Random(seed)
        self._name = name
        self._topic = topic
        self._bootstrap = bootstrap
        self._process = Process()
        self._late: list[tuple[Write, list[bytes]]] = []
        self.steps: Counter[str] = Counter()
        self.options = parse_sink_options(
            {
                "kafka.bootstrap.servers": bootstrap,
                "topic": topic,
                "delivery": "exactly-once",
                "kafka.batch.size": "200",
            }
        )
        original, begin = BlockingClient._send, BlockingClient.begin

        def carry_out(client: BlockingClient, step: Send) -> Message:
            return self._process.carry_out(step.request, lambda: original(client, step))

        def begin_one(client: BlockingClient, node: int, request: Message, **given: Any) -> Begun:
            def send() -> Begun:
                begun = begin(client, node, request, **given)
                if self._process.is_dead:  # the broker carries it out before it closes
                    client.complete(begun)
                return begun

            return self._process.carry_out(request, send)

        patch.setattr(BlockingClient, "_send", carry_out)
        patch.setattr(BlockingClient, "begin", begin_one)

    def execute(self, number: int, rows: list[bytes]) -> None:
        """Until Spark has the end of the batch in its log, with as many drivers as it takes."""
        while not self._execute_once(number, rows):
            two_phase_commit._known.clear()

    def _execute_once(self, number: int, rows: list[bytes]) -> bool:
        write = Write(self._name, number, uuid.uuid4().hex, uuid.uuid4().hex)
        shares = self._deal(rows)
        for late, some in self._late:
            self._run_task(late, some, Process())
        self._late.clear()
        results: list[TaskResult] = []
        for share in shares:
            result = self._run_with_retries(write, share)
            if result is None:
                return False
            results.append(result)
            if self._random.random() < 0.15:  # a twin that loses
                self._run_task(write, share, self._doomed())
            if self._random.random() < 0.1:  # and one that Spark has forgotten, but not ended
                self._late.append((write, share))
        return self._commit(write, results)

    def _deal(self, rows: list[bytes]) -> list[list[bytes]]:
        shares: list[list[bytes]] = [[] for _ in range(self._random.randint(1, 5))]
        for row in rows:
            self._random.choice(shares).append(row)
        return shares

    def _doomed(self) -> Process:
        """A process that dies in one of three cases."""
        if self._random.random() > 0.33:
            return Process()
        return Process(self._random.randrange(12), self._random.random() < 0.5)

    def _run_with_retries(self, write: Write, share: list[bytes]) -> TaskResult | None:
        for _ in range(ATTEMPTS):
            result = self._run_task(write, share, self._doomed())
            if result is not None:
                return result
        return None

    def _run_task(self, write: Write, share: list[bytes], process: Process) -> TaskResult | None:
        self._process = process
        try:
            return write_task(self.options, _batches(share), write)
        except (CrashError, Exception) as error:
            # A forgotten twin may find that its batch is over; anything else is a defect.
            if not process.is_dead and (write, share) not in self._late:
                raise AssertionError(f"a task failed without a crash: {error}") from error
            self._note(process, "executor")
            return None

    def _commit(self, write: Write, results: list[TaskResult]) -> bool:
        prepared = [result.prepared for result in results if result.prepared is not None]
        self._process = Process()
        if self._random.random() < 0.5:
            self._process = Process(self._random.randrange(14), self._random.random() < 0.5)
        try:
            with client_of(self.options.client) as client:
                cluster = KafkaCluster(client, self.options.client)
                target = next((r.target for r in results if r.target is not None), None)
                target = target or target_of(cluster, self._topic)
                batch = BatchCommit(self.options, cluster, write, target)
                batch.commit(prepared, sum(result.rows for result in results))
        except CrashError:
            self._note(self._process, "driver")
            return False
        return not self._process.is_dead

    def _note(self, process: Process, role: str) -> None:
        if process.is_dead:
            when = "after" if process.after else "before"
            self.steps[f"{role} {when} {process.sent[-1]}"] += 1

    def visible(self) -> Counter[bytes]:
        """The values of all records that read_committed readers get, when nothing is open."""
        self._process = Process()
        return committed_values(self._bootstrap, self._topic)


def _batches(rows: list[bytes]) -> Iterator[Any]:
    for start in range(0, len(rows), 4):
        yield pa.record_batch({"value": pa.array(rows[start : start + 4], pa.binary())})


def committed_values(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> Counter[bytes]:
    """What is in a topic for read_committed readers; waits until no transaction is open."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    committed = parse_source_options(given | {"kafka.isolation.level": "read_committed"})
    everything = parse_source_options(given)
    latest = {TopicPartition(topic, number): LATEST for number in range(partitions)}
    with cluster_of(everything) as plain, cluster_of(committed) as stable:
        eventually(
            lambda: stable.offsets_at(latest) == plain.offsets_at(latest),
            lambda: f"a transaction stays open: {plain.offsets_at(latest)}",
        )
        ends = stable.offsets_at(latest)
    return Counter(
        value
        for partition, end in ends.items()
        for batch in read_range(committed, row_schema(committed), OffsetRange(partition, 0, end))
        for value in batch.column("value").to_pylist()
    )


def write_batches(spark: Spark, batches: int, rows: int) -> Counter[bytes]:
    """Executes that many batches; the rows that were sent."""
    sent: Counter[bytes] = Counter()
    for number in range(batches):
        some = [b"%d-%d" % (number, row) for row in range(rows)]
        sent.update(some)
        spark.execute(number, some)
    return sent


__all__ = ["SinkOptions", "Spark", "committed_values", "write_batches"]
