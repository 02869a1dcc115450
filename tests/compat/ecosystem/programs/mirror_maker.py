"""MirrorMaker 2, dedicated: both ways between the tested broker and Apache Kafka, exactly once."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.compat.ecosystem.clients import (
    create_topics,
    produce,
    read_topic,
    read_until,
    topic_settings,
)
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.jars import java, kafka_addition
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import JavaProcess
from tests.doubles.eventually import eventually

VERSION = "3.9.1"
COUNT = 300
START_SECONDS = 900.0  # three workers of Connect for each direction in one process
COPY_SECONDS = 600.0
GROUP = "readers"

# The tested broker is "here"; the other end, Apache Kafka, is "there".
_PROPERTIES = """clusters=here,there
here.bootstrap.servers={here}
there.bootstrap.servers={there}
here->there.enabled=true
there->here.enabled=true
here->there.topics=orders.*
there->here.topics=payments.*
groups={group}
here.exactly.once.source.support=enabled
there.exactly.once.source.support=enabled
dedicated.mode.enable.internal.rest=true
listeners=http://127.0.0.1:0
tasks.max=1
replication.factor=1
offset-syncs.topic.replication.factor=1
heartbeats.topic.replication.factor=1
checkpoints.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
offset.lag.max=0
offset.flush.interval.ms=500
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=2
sync.topic.configs.interval.seconds=2
emit.heartbeats.interval.seconds=1
emit.checkpoints.interval.seconds=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
here.consumer.auto.offset.reset=earliest
there.consumer.auto.offset.reset=earliest
"""


def _numbered(start: int, count: int = COUNT) -> list[str]:
    return [f"value {number}" for number in range(start, start + count)]


def _run(script: Script) -> None:
    libraries = kafka_addition(VERSION, "connect-mirror", "connect-mirror-client")
    with script.start_cluster() as here, script.start_kafka() as there:
        properties = script.directory / "mirror.properties"
        properties.write_text(
            _PROPERTIES.format(here=here.bootstrap, there=there.bootstrap, group=GROUP)
        )
        main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
        command = java(libraries, script.directory, main_class, str(properties))
        mirror = Mirror(command, script)
        try:
            _steps(script, here, there, mirror)
        finally:
            mirror.kill()


class Mirror:
    """The process of MirrorMaker; started and killed by the script."""

    def __init__(self, command: list[str], script: Script) -> None:
        self._command = command
        self._output = script.directory / "mirror.log"
        self._process: JavaProcess | None = None

    def start(self) -> None:
        self._process = JavaProcess(self._command, self._output)
        self._process.wait_for("Kafka MirrorMaker started", START_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _steps(script: Script, here: Cluster, there: Cluster, mirror: Mirror) -> None:
    create_topics(here.bootstrap, ["orders"], partitions=2)
    create_topics(there.bootstrap, ["payments"], partitions=2)
    ways = ((here, "orders", there, "here.orders"), (there, "payments", here, "there.payments"))
    sent = 0

    def send(count: int = COUNT) -> None:
        nonlocal sent
        for source, topic, _, _ in ways:
            for partition in range(2):
                produce(source.bootstrap, topic, _numbered(sent, count), partition)
        sent += count

    def wait_for_copies(topics: int = 2) -> None:
        for _, _, target, copy in ways[:topics]:
            records = read_until(
                target.bootstrap, copy, lambda found: len(found) >= 2 * sent, COPY_SECONDS
            )
            assert [record.value for record in records] == 2 * _numbered(0, sent), copy
            assert all(record.key == f"key-{record.value}" for record in records)

    send()
    with script.check("it starts with exactly.once.source.support for both clusters"):
        mirror.start()
    with script.check("records are copied in both directions, each once and in order"):
        wait_for_copies()
    with script.check("copied topics have the partitions and the settings of the source"):
        for source, topic, target, copy in ways:
            _alter(source.bootstrap, topic, "max.message.bytes", "123456")
            _wait_for_setting(target.bootstrap, copy, "max.message.bytes", "123456")
    with script.check("heartbeats of both clusters, also copied to the other one"):
        for target, copy in ((there, "here.heartbeats"), (here, "there.heartbeats")):
            read_until(target.bootstrap, copy, lambda found: len(found) > 1, COPY_SECONDS)
    with script.check("committed offsets are translated and set in the group of the target"):
        for source, topic, target, copy in ways:
            _commit(source.bootstrap, topic, sent)
            _wait_for_group(target.bootstrap, copy, sent)
    with script.check("a consumer that moves to the target reads what is new and nothing else"):
        send(20)
        wait_for_copies()
        for _, _, target, copy in ways:
            assert _read_as_group(target.bootstrap, copy, 40) == 2 * _numbered(sent - 20, 20)
    with script.check("killed while it copies and started again: each record once and in order"):
        for _ in range(5):
            send(COUNT // 5)
            time.sleep(0.5)
        mirror.kill()
        send(COUNT)
        mirror.start()
        wait_for_copies()
    with script.check("a topic that is created later is copied"):
        produce(here.bootstrap, "orders-later", _numbered(0, 10))
        read_until(
            there.bootstrap, "here.orders-later", lambda found: len(found) == 10, COPY_SECONDS
        )


def _alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def _wait_for_setting(bootstrap: str, topic: str, name: str, value: str) -> None:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic).topics[topic]
    assert len(found.partitions) == 2, found.partitions
    eventually(
        lambda: topic_settings(bootstrap, topic)[name] == value,
        f"{name} of {topic} is not {value}",
        seconds=COPY_SECONDS,
        pause_seconds=1.0,
    )


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )


def _commit(bootstrap: str, topic: str, offset: int) -> None:
    """Commits the offset after so many records of each partition, as a member that read them."""
    ends = {0: 0, 1: 0}
    seen = {0: 0, 1: 0}
    for record in read_topic(bootstrap, topic):
        seen[record.partition] += 1
        if seen[record.partition] == offset:
            ends[record.partition] = record.offset + 1
    consumer = _consumer(bootstrap)
    consumer.commit(
        offsets=[TopicPartition(topic, each, end) for each, end in ends.items()],
        asynchronous=False,
    )
    consumer.close()


def _wait_for_group(bootstrap: str, topic: str, count: int) -> None:
    """Until the group has, in each partition, the offset after so many records."""
    places = [TopicPartition(topic, each) for each in range(2)]
    request = [ConsumerGroupTopicPartitions(GROUP, places)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    last: list[int] = []

    def is_translated() -> bool:
        found = admin.list_consumer_group_offsets(request)[GROUP].result(60)
        last[:] = [each.offset for each in found.topic_partitions]
        records = read_topic(bootstrap, topic)
        before = [
            sum(record.partition == each and record.offset < offset for record in records)
            for each, offset in enumerate(last)
        ]
        return before == [count, count]

    eventually(
        is_translated,
        lambda: f"the offsets of the group in {topic} are {last}",
        seconds=COPY_SECONDS,
        pause_seconds=1.0,
    )


def _read_as_group(bootstrap: str, topic: str, count: int) -> list[str]:
    """The next records of the group, as a member gets them, in the order of partitions."""
    consumer = _consumer(bootstrap)
    consumer.subscribe([topic])
    found: list[tuple[int, str]] = []

    def has_read() -> bool:
        for message in consumer.consume(100, 1.0):
            assert message.error() is None, message.error()
            found.append((message.partition() or 0, (message.value() or b"").decode()))
        return len(found) >= count

    try:
        eventually(has_read, lambda: f"{len(found)} records", seconds=60)
    finally:
        consumer.close()
    return [value for _, value in sorted(found, key=lambda row: row[0])]


PROGRAM = Program(
    "mirror_maker",
    "MirrorMaker 2",
    VERSION,
    ("java", "mvn"),
    _run,
    (
        "One dedicated process copies from the tested broker to Apache Kafka 3.9.1, and from Kafka"
        " to the tested broker.",
    ),
)
