"""Several log directories: replicas are moved between them while they are written to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.protocol.client.aio_connection import AsyncConnection
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.producing import numbered, produce, read_from_start

TOPIC = "moved"
SECONDS = 30.0


def ask(broker: BrokerProcess, request: Message) -> Message:
    async def send() -> Message:
        connection = AsyncConnection("127.0.0.1", broker.port)
        await connection.connect()
        response = await connection.request(request)
        connection.close()
        return response

    return asyncio.run(send())


def where(broker: BrokerProcess) -> list[tuple[str, bool]]:
    """(directory, whether it is a copy on its way) of the topic's only partition."""
    response = ask(broker, DescribeLogDirsRequest(topics=None))
    assert isinstance(response, DescribeLogDirsResponse)
    return [
        (result.log_dir, row.is_future_key)
        for result in response.results
        for topic in result.topics
        for row in topic.partitions
        if topic.name == TOPIC
    ]


def move(broker: BrokerProcess, directory: str) -> int:
    topics = [AlterReplicaLogDirTopic(TOPIC, [0])]
    response = ask(broker, AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(directory, topics)]))
    assert isinstance(response, AlterReplicaLogDirsResponse)
    return response.results[0].partitions[0].error_code


def write(broker: BrokerProcess, first: int, count: int) -> None:
    produce(broker.bootstrap, TOPIC, numbered(first, count), seconds=SECONDS)


def read(broker: BrokerProcess, count: int) -> list[int]:
    values = read_from_start(broker.bootstrap, TOPIC, count, seconds=SECONDS)
    return [int(value) for value in values if value is not None]


def test_a_replica_moves_to_another_disk_and_nothing_is_lost(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with start_broker(tmp_path, log_dirs=f"{first},{second}") as broker:
        write(broker, 0, 1000)
        ((source, _),) = where(broker)
        target = second if source == first else first
        assert move(broker, "/no/such/directory") == 57
        assert move(broker, source) == 0, "it is there"
        assert move(broker, target) == 0
        write(broker, 1000, 1000)
        eventually(
            lambda: where(broker) == [(target, False)], lambda: where(broker), seconds=SECONDS
        )
        write(broker, 2000, 1000)
        assert read(broker, 3000) == list(range(3000))
        broker.restart()
        assert where(broker) == [(target, False)]
        assert read(broker, 3000) == list(range(3000))
