"""Kafka's VerifiableProducer and a group of VerifiableConsumers on the client host."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.compat.system.cluster import CLIENTS, Cluster
from tests.compat.system.measures import Deliveries, Findings, check_log
from tests.doubles.eventually import eventually
from tests.doubles.kafka_clients import OLD, JsonLines, client_library, java_command

TOPIC, GROUP = "verified", "verifiers"
PARTITIONS, MEMBERS = 4, 2
RECORDS_PER_S = 200
SETTLE_S = 120.0
# The tool gives up at once by default, so that loss and doubling would be its own.
_PRODUCER = """enable.idempotence=true
retries=2147483647
delivery.timeout.ms=600000
request.timeout.ms=5000
max.block.ms=600000
metadata.max.age.ms=5000
"""


def tool(cluster: Cluster, name: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's tools on the client host."""
    command = java_command(client_library(OLD), f"org.apache.kafka.tools.{name}", *arguments)
    return [*cluster.hosts.on(CLIENTS), *command]


class Tool(JsonLines):
    """A tool, with the arrival of each kind of event by partition in milliseconds."""

    def __init__(self, command: list[str], output: Path) -> None:
        super().__init__(command, output)
        self.times: dict[int, list[int]] = defaultdict(list)

    def look(self) -> None:
        for event in self.new_objects():
            self.take(event)

    def take(self, event: dict[str, Any]) -> None:
        raise NotImplementedError


class VerifiableProducer(Tool):
    """Writes 0, 1, 2, ... over all partitions until it is stopped."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        settings = directory / "producer.properties"
        settings.write_text(_PRODUCER)
        command = tool(
            cluster,
            "VerifiableProducer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--repeating-keys", "40"),
            *("--throughput", str(RECORDS_PER_S), "--producer.config", str(settings)),
        )
        super().__init__(command, directory / "verifiable-producer.log")
        #: By partition: the offset of each number.
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        self.failed = 0

    def take(self, event: dict[str, Any]) -> None:
        if event["name"] == "producer_send_success":
            self.acknowledged[event["partition"]][int(event["value"])] = event["offset"]
            self.times[event["partition"]].append(event["timestamp"])
        elif event["name"] == "producer_send_error":
            self.failed += 1

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


class Member(Tool):
    """One VerifiableConsumer."""

    def __init__(self, cluster: Cluster, output: Path, deliveries: Deliveries) -> None:
        command = tool(
            cluster,
            "VerifiableConsumer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--group-id", GROUP),
            *("--session-timeout", "10000"),
        )
        super().__init__(command, output)
        self._deliveries = deliveries
        self.failed_commits = 0

    def take(self, event: dict[str, Any]) -> None:
        if event["name"] == "records_consumed":
            for row in event["partitions"]:
                self._deliveries.add(row["partition"], row["minOffset"], row["maxOffset"])
                self.times[row["partition"]].append(event["timestamp"])
        elif event["name"] == "offsets_committed" and not event["success"]:
            self.failed_commits += 1


class Verifiable:
    """The producer, the members, and the check of what they did."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        cluster.create_topic(TOPIC, PARTITIONS)
        self.deliveries = Deliveries()
        self.members = [
            Member(cluster, directory / f"verifiable-consumer-{number}.log", self.deliveries)
            for number in range(MEMBERS)
        ]
        self.producer = VerifiableProducer(cluster, directory)

    def is_working(self) -> bool:
        """Whether records came back from each partition."""
        self.look()
        return len(self.consumed_times()) == PARTITIONS

    def look(self) -> None:
        for each in (self.producer, *self.members):
            each.look()
            assert each.process.poll() is None, f"a tool ended:\n{each.output()[-4000:]}"

    def produced_times(self) -> dict[int, list[int]]:
        return self.producer.times

    def consumed_times(self) -> dict[int, list[int]]:
        """Of both members."""
        merged: dict[int, list[int]] = defaultdict(list)
        for member in self.members:
            for partition, times in member.times.items():
                merged[partition] += times
        return merged

    def stop(self) -> None:
        """Ends the producer, and the members when they have been given everything."""
        self.producer.leave()
        self.producer.look()
        ends = end_offsets(self._cluster, TOPIC, PARTITIONS)

        def has_everything() -> bool:
            for member in self.members:
                member.look()
            return not any(self.deliveries.missing(each, end) for each, end in ends.items())

        deadline = time.monotonic() + SETTLE_S
        while not has_everything() and time.monotonic() < deadline:
            time.sleep(0.5)
        for member in self.members:
            member.leave()
            member.look()

    def check(self, findings: Findings) -> dict[str, int]:
        kept = read_numbers(self._cluster, TOPIC, PARTITIONS)
        check_log(findings, TOPIC, self.producer.acknowledged, kept)
        for partition, numbers in kept.items():
            missing = self.deliveries.missing(partition, len(numbers))
            findings.add("lost", missing, f"deliveries of {TOPIC}-{partition}")
        return {
            "acknowledged": self.producer.count,
            "failed sends": self.producer.failed,
            "delivered again": self.deliveries.repeated(),
            "failed commits": sum(member.failed_commits for member in self.members),
        }

    def kill(self) -> None:
        for each in (self.producer, *self.members):
            each.kill()


def consumer(cluster: Cluster, isolation: str) -> Consumer:
    """A consumer of the runner, without a group."""
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "system-test-reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )


def end_offsets(cluster: Cluster, topic: str, partitions: int) -> dict[int, int]:
    """The high watermarks."""
    reader = consumer(cluster, "read_uncommitted")
    found: dict[int, int] = {}

    def is_known() -> bool:
        for each in range(partitions):
            try:
                place = TopicPartition(topic, each)
                found[each] = reader.get_watermark_offsets(place, timeout=60)[1]
            except KafkaException:  # a leader has changed; the client does not try again
                return False
        return True

    try:
        eventually(is_known, f"the ends of {topic} are not known", seconds=SETTLE_S)
        return found
    finally:
        reader.close()


def read_numbers(
    cluster: Cluster, topic: str, partitions: int, isolation: str = "read_committed"
) -> dict[int, list[int]]:
    """The values of each partition up to its high watermark, as numbers, in order."""
    ends = end_offsets(cluster, topic, partitions)
    found: dict[int, list[int]] = {each: [] for each in ends}
    reader = consumer(cluster, isolation)
    reader.assign([TopicPartition(topic, each, 0) for each in ends])

    def is_read() -> bool:
        for message in reader.consume(2000, 0.5):
            if message.error() is None:
                partition = message.partition()
                assert partition is not None
                found[partition].append(int(message.value() or b"-1"))
        places = reader.position([TopicPartition(topic, each) for each in ends])
        return all(each.offset >= ends[each.partition] for each in places if ends[each.partition])

    try:
        eventually(is_read, f"{topic} cannot be read to its end {ends}", seconds=SETTLE_S)
    finally:
        reader.close()
    return found
