"""Several log directories: replicas are moved between them while they are written to."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from urllib.request import urlopen

from ottla.cli.zookeeper_server import free_port
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


def disks(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "first", tmp_path / "second"


def partition_in(*directories: Path) -> tuple[Path, Path]:
    """The partition, and the directory that does not have it."""
    one, other = directories
    if not (one / f"{TOPIC}-0").exists():
        one, other = other, one
    return one / f"{TOPIC}-0", other


def set_aside(*directories: Path) -> list[Path]:
    return [path for each in directories for path in each.glob("*-stray")]


def test_a_copied_directory_is_set_aside_and_the_records_stay(tmp_path: Path) -> None:
    first, second = disks(tmp_path)
    with start_broker(tmp_path, log_dirs=f"{first},{second}") as broker:
        write(broker, 0, 50)
        broker.stop()
        log, other = partition_in(first, second)
        shutil.copytree(log, other / log.name)
        broker.start()
        write(broker, 50, 50)
        broker.stop()
        # The copy was equal, and is deleted; now it is an old one.
        (old,) = other.glob(f"{TOPIC}-0*")
        assert old.name.endswith("-delete")
        old.rename(other / log.name)
        broker.start()
        assert read(broker, 100) == list(range(100))
        (aside,) = set_aside(first, second)
        assert aside.parent == other


def test_a_directory_of_another_topic_does_not_stop_the_start(tmp_path: Path) -> None:
    """As of a topic that was deleted while its disk was away. It has more records, too."""
    first, second = disks(tmp_path)
    with start_broker(tmp_path / "other", log_dirs=tmp_path / "third") as broker:
        write(broker, 0, 200)
    with start_broker(tmp_path, log_dirs=f"{first},{second}") as broker:
        write(broker, 0, 50)
        broker.stop()
        _, other = partition_in(first, second)
        shutil.copytree(tmp_path / "third" / f"{TOPIC}-0", other / f"{TOPIC}-0")
        broker.start()
        assert read(broker, 50) == list(range(50))
        assert "is in two log directories with different topic ids" in broker.log()
        (aside,) = set_aside(first, second)
        assert aside.parent == other
        assert '"second-copy"' in (aside / "set-aside.json").read_text()


def test_a_future_log_whose_current_log_is_gone_is_set_aside(tmp_path: Path) -> None:
    """And the empty log that begins in its place does not truncate it at the next start."""
    first, second = disks(tmp_path)
    with start_broker(tmp_path, log_dirs=f"{first},{second}") as broker:
        write(broker, 0, 50)
        broker.stop()
        log, other = partition_in(first, second)
        log.rename(other / f"{TOPIC}-0.{1:032}-future")
        for _ in range(2):
            broker.start()
            (aside,) = set_aside(first, second)
            assert '"incomplete-move"' in (aside / "set-aside.json").read_text()
            broker.stop()
        (new, _) = partition_in(first, second)
        shutil.rmtree(new)
        aside.rename(other / f"{TOPIC}-0")
        broker.start()
        assert read(broker, 50) == list(range(50))


def test_a_disk_that_is_not_mounted_is_named_and_its_records_come_back(tmp_path: Path) -> None:
    first, second = disks(tmp_path)
    http = free_port()
    address = f"127.0.0.1:{http}"
    with start_broker(
        tmp_path, log_dirs=f"{first},{second}", ottla_metrics_address=address
    ) as broker:
        write(broker, 0, 50)
        broker.stop()
        log, other = partition_in(first, second)
        tree = log.parent / "ottla-znodes.db"
        away = tmp_path / "away"
        log.parent.rename(away)
        log.parent.mkdir()
        if (away / tree.name).exists():
            shutil.copy(away / tree.name, tree)
        broker.start()
        assert f"Log dir {log.parent} of the last start is missing" in broker.log()
        assert f"{TOPIC}-0 begins empty in" in broker.log()
        with urlopen(f"http://{address}/readyz", timeout=SECONDS) as response:
            assert f"log directory {log.parent} of the last start is missing" in str(
                response.read()
            )
        write(broker, 1000, 1)
        broker.stop()
        # The disk is mounted: what was written in the meantime is below the mount point, or here.
        shutil.rmtree(log.parent)
        away.rename(log.parent)
        broker.start()
        assert read(broker, 50) == list(range(50))
        assert all(path.parent == other for path in set_aside(first, second))
