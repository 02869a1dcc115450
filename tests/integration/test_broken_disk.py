"""Two log directories of which one fails: only its partitions are away, until it is repaired."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing.embedded import Broker
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.message import Message
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.reader import read_records
from ottla.protocol.topics import TopicPartition
from tests.doubles.eventually import eventually

SECONDS = 60.0
TOPIC = "t"


class Disk:
    """Every write to the files of one directory fails once it is broken."""

    def __init__(self, broker: Broker) -> None:
        self.broken = ""
        broker.server.parts.logs.fs.pwrite = self.pwrite  # type: ignore[method-assign]

    def pwrite(self, descriptor: int, buffer: bytes, position: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.broken and path.startswith(self.broken):
            raise OSError(errno.EIO, "broken for the test", path)
        return os.pwrite(descriptor, buffer, position)


def ask(broker: Broker, request: Message) -> Message:
    with BlockingClient(broker.bootstrap) as client:
        return client.call_once(request)


def create(broker: Broker, topic: str, partitions: int) -> None:
    """Returns when this broker leads all of them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS)
    hosted = broker.server.parts.replica_manager.partitions
    keys = [TopicPartition(topic, index) for index in range(partitions)]
    eventually(
        lambda: all(key in hosted and hosted[key].is_leader for key in keys),
        f"a partition of {topic} is not led",
    )


def produce(broker: Broker, partition: int, value: bytes, topic: str = TOPIC) -> int:
    """The error code of the response."""
    data = PartitionProduceData(partition, build_batch([(0, None, value, [])]))
    topics = [TopicProduceData(topic, [data])]
    response = ask(broker, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics))
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def read(broker: Broker, partition: int) -> list[bytes | None]:
    """What is in the partition; waits for it to have a leader, as after a restart."""
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    request = FetchRequest(replica_id=-1, max_wait_ms=0, max_bytes=1 << 20, topics=topics)
    deadline = time.monotonic() + SECONDS
    with BlockingClient(broker.bootstrap) as client:
        while True:
            response = client.call_once(request, versions=Versions(4, 11))
            assert isinstance(response, FetchResponse)
            (found,) = response.responses[0].partitions
            if found.error_code == 0:
                return [record.value for record in read_records(bytes(found.records or b""))]
            assert time.monotonic() < deadline, error_name(found.error_code)
            time.sleep(0.05)


def directory_of(broker: Broker, partition: int, topic: str = TOPIC) -> str:
    log = broker.server.parts.logs.get(topic, partition)
    assert log is not None
    return log.log_directory.path


def test_only_its_partitions_are_away_until_it_is_repaired(tmp_path: Path) -> None:
    directories = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    with Broker(tmp_path, log_dirs=directories) as broker:
        disk = Disk(broker)
        create(broker, TOPIC, 2)
        assert directory_of(broker, 0) != directory_of(broker, 1)
        for partition in (0, 1):
            assert produce(broker, partition, b"before") == 0

        disk.broken = directory_of(broker, 0)
        assert produce(broker, 0, b"lost") == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(broker, 0, b"lost") != 0
        assert produce(broker, 1, b"meanwhile") == 0
        assert read(broker, 1) == [b"before", b"meanwhile"]
        response = ask(broker, DescribeLogDirsRequest(topics=None))
        assert isinstance(response, DescribeLogDirsResponse)
        codes = {result.log_dir: result.error_code for result in response.results}
        assert sorted(codes.values()) == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        assert codes[disk.broken] == ErrorCode.KAFKA_STORAGE_ERROR
        # No directory has the log of a new partition: it need not be on the broken disk.
        create(broker, "later", 1)
        assert directory_of(broker, 0, "later") != disk.broken
        assert produce(broker, 0, b"new", "later") == 0

        broker.restart()
        assert read(broker, 0) == [b"before"]
        assert read(broker, 1) == [b"before", b"meanwhile"]
