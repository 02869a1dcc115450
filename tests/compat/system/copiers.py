"""Kafka's TransactionalMessageCopier: one process for each partition, its copies checked."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.compat.system.cluster import Cluster
from tests.compat.system.measures import Findings, check_copy
from tests.compat.system.verifiable import SETTLE_S, consumer, read_numbers, tool
from tests.doubles.eventually import eventually
from tests.doubles.kafka_clients import JsonLines

SOURCE, TARGET = "copied-from", "copied-to"
PARTITIONS = 2
# A copier ends at the end that its partition had when it began. Then it gets so many more.
RECORDS_AT_ONCE = 40_000
_TRANSACTION_RECORDS = "20"
# So that a transaction whose copier was killed is over before the run is.
_TRANSACTION_TIMEOUT_MS = "30000"


class Arrivals(threading.Thread):
    """Reads committed records and notes when they come, by partition."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        super().__init__(daemon=True, name=f"arrivals-{topic}")
        self.times: dict[int, list[int]] = defaultdict(list)
        self._consumer = consumer(cluster, "read_committed")
        self._places = [TopicPartition(topic, each, 0) for each in range(partitions)]
        self._consumer.assign(self._places)
        self._stopping = threading.Event()

    def partitions(self) -> list[TopicPartition]:
        """The beginnings of all partitions."""
        return self._places

    def run(self) -> None:
        while not self._stopping.is_set():
            messages = self._consumer.consume(1000, 0.05)
            now = round(time.time() * 1000)
            for partition in {each.partition() for each in messages if each.error() is None}:
                assert partition is not None
                self.times[partition].append(now)
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Copiers:
    """The copiers, what they copy and the reader of their copies."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        for topic in (SOURCE, TARGET):
            cluster.create_topic(topic, PARTITIONS)
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
        self._producer = Producer({**settings, "linger.ms": 20, "log_level": 0})
        self._written = [0] * PARTITIONS
        self._processes: dict[int, JsonLines] = {}
        self.starts = 0
        #: How often a copier ended with an error, with its last words.
        self.failures: list[str] = []
        for partition in range(PARTITIONS):
            self._write(partition)
            self._start(partition)
        self.arrivals = Arrivals(cluster, TARGET, PARTITIONS)
        self.arrivals.start()

    def _write(self, partition: int) -> None:
        first = self._written[partition]
        for number in range(first, first + RECORDS_AT_ONCE):
            while True:
                try:
                    self._producer.produce(SOURCE, b"%d" % number, partition=partition)
                    break
                except BufferError:
                    self._producer.poll(0.5)
        assert self._producer.flush(120) == 0
        self._written[partition] += RECORDS_AT_ONCE

    def _start(self, partition: int) -> None:
        self.starts += 1
        command = tool(
            self._cluster,
            "TransactionalMessageCopier",
            *("--broker-list", self._cluster.bootstrap, "--input-topic", SOURCE),
            *("--input-partition", str(partition), "--output-topic", TARGET),
            *("--transactional-id", f"copier-{partition}", "--consumer-group", group(partition)),
            *("--transaction-size", _TRANSACTION_RECORDS, "--enable-random-aborts"),
            *("--transaction-timeout", _TRANSACTION_TIMEOUT_MS, "--use-group-metadata"),
        )
        output = self._directory / f"copier-{partition}-{self.starts}.log"
        self._processes[partition] = JsonLines(command, output)

    def is_working(self) -> bool:
        """Whether copies came to each partition."""
        return len(self.arrivals.times) == PARTITIONS

    def look(self) -> None:
        """Starts those again that have ended."""
        for partition, process in self._processes.items():
            code = process.process.poll()
            if code is None:
                continue
            if code:
                lines = [line for line in process.output().splitlines() if "{" not in line[:1]]
                self.failures.append(" / ".join(lines[-3:])[:400])
            else:
                self._write(partition)
            self._start(partition)

    def kill_one(self, partition: int) -> None:
        """kill -9 in the middle of a transaction; the next of its id has to fence and end it."""
        self._processes[partition].kill()
        self._start(partition)

    def stop(self) -> None:
        for process in self._processes.values():
            process.leave()
        self.arrivals.stop()

    def check(self, findings: Findings) -> dict[str, int]:
        source = read_numbers(self._cluster, SOURCE, PARTITIONS)
        target = read_numbers(self._cluster, TARGET, PARTITIONS)
        for partition in range(PARTITIONS):
            expected = list(range(self._written[partition]))
            if source[partition] != expected:
                findings.add("lost", [partition], f"{SOURCE} is not what was written")
            position = self._position(partition)
            where = f"{TARGET}-{partition}"
            check_copy(findings, where, source[partition], target[partition], position)
        return {
            "copied": sum(map(len, target.values())),
            "copier failures": len(self.failures),
        }

    def _position(self, partition: int) -> int:
        wanted = ConsumerGroupTopicPartitions(group(partition))
        admin = self._cluster.admin
        rows: list[TopicPartition] = []

        def is_known() -> bool:
            found = admin.list_consumer_group_offsets([wanted], require_stable=True)
            try:
                rows[:] = found[group(partition)].result(60).topic_partitions
            except KafkaException:  # the coordinator has changed; the client does not try again
                return False
            return all(row.error is None for row in rows)  # such as UNSTABLE_OFFSET_COMMIT

        what = f"no offsets of {group(partition)}"
        eventually(is_known, lambda: f"{what}: {rows}", seconds=SETTLE_S)
        return max(0, next((row.offset for row in rows if row.partition == partition), 0))

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()


def group(partition: int) -> str:
    return f"copiers-{partition}"
