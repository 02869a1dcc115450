"""A broker without ZooKeeper whose znode file cannot be written for a while: clients get errors
that they retry, each place that reports the state names it, and it ends without a restart."""

from __future__ import annotations

import sqlite3
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing.embedded import Broker
from ottla.controller.tree.tree_file import TreeFile
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.doubles.eventually import eventually

SECONDS = 60.0
FAULT = "ottla-znodes.db cannot be written: database or disk is full"


class Disk:
    """SQLite gets no more pages while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        original = TreeFile._write

        def write(file: TreeFile, *arguments: object) -> None:
            pages = 1 << 30
            if self.is_full:
                (pages,) = file.connection.execute("PRAGMA page_count").fetchone()
            file.connection.execute(f"PRAGMA max_page_count={pages}")
            if self.is_full:
                with file.connection:  # whatever the file has free is used up
                    file.connection.execute("CREATE TABLE IF NOT EXISTS filler (data)")
                    file.connection.execute("INSERT INTO filler VALUES (zeroblob(1 << 20))")
            original(file, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(TreeFile, "_write", write)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def broker(disk: Disk) -> Iterator[Broker]:
    with Broker(ottla_metrics_address="127.0.0.1:0") as broker:
        broker.create_topic("t")
        yield broker


def call(broker: Broker, request: Message, versions: Versions | None = None) -> Message:
    with BlockingClient(broker.bootstrap) as client:
        if versions is None:
            return client.call_once(request)
        return client.call_once(request, versions=versions)


def readyz(broker: Broker) -> str:
    address = f"http://127.0.0.1:{broker.server.metrics_port}/readyz"
    with urllib.request.urlopen(address, timeout=SECONDS) as response:
        body: bytes = response.read()
    return body.decode()


def create(broker: Broker, name: str) -> int:
    """The error code of the response."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    try:
        admin.create_topics([NewTopic(name, 1)], request_timeout=SECONDS)[name].result(SECONDS)
    except KafkaException as error:
        found = error.args[0]
        assert isinstance(found, KafkaError)
        code: int = found.code()
        return code
    return 0


def alter_topic(broker: Broker) -> int:
    resource = AlterConfigsResource(2, "t", [AlterableConfig("retention.ms", 0, "1234567")])
    response = call(broker, IncrementalAlterConfigsRequest(resources=[resource]))
    assert isinstance(response, IncrementalAlterConfigsResponse)
    return response.responses[0].error_code


def alter_quota(broker: Broker) -> int:
    entity = AlterClientQuotasRequestEntityData("user", "alice")
    operation = OpData("request_percentage", 50.0)
    entry = AlterClientQuotasRequestEntryData([entity], [operation])
    response = call(broker, AlterClientQuotasRequest(entries=[entry]))
    assert isinstance(response, AlterClientQuotasResponse)
    return response.entries[0].error_code


def find_coordinator(broker: Broker) -> int:
    response = call(broker, FindCoordinatorRequest("g", 0), Versions(1, 3))
    assert isinstance(response, FindCoordinatorResponse)
    return response.error_code


def test_it_heals_without_a_restart_and_is_named_meanwhile(
    broker: Broker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.is_full = True
    assert create(broker, "meanwhile") == ErrorCode.REQUEST_TIMED_OUT
    eventually(lambda: FAULT in readyz(broker), "/readyz does not name it")
    assert create(broker, "later") in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)
    assert alter_topic(broker) == ErrorCode.REQUEST_TIMED_OUT
    assert alter_quota(broker) == ErrorCode.REQUEST_TIMED_OUT
    assert find_coordinator(broker) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    produced = call(broker, InitProducerIdRequest(None, 60_000))
    assert isinstance(produced, InitProducerIdResponse)
    transactional = call(broker, InitProducerIdRequest("t", 60_000))
    assert isinstance(transactional, InitProducerIdResponse)
    assert transactional.error_code in (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
    new = MetadataRequest([MetadataRequestTopic(name="new")])
    found = call(broker, new)
    assert isinstance(found, MetadataResponse)
    assert found.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", b"meanwhile")
    assert producer.flush(SECONDS) == 0

    disk.is_full = False
    eventually(lambda: create(broker, "later") == 0, "no topic can be created")
    assert alter_topic(broker) == 0
    assert alter_quota(broker) == 0
    assert readyz(broker) == "ok\n"
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    (message,) = consumer.consume(1, SECONDS)
    assert message.value() == b"meanwhile"
    consumer.close()
    assert not [record for record in caplog.records if record.exc_info]


def test_a_restart_after_a_full_disk_finds_all_that_was_acknowledged(
    broker: Broker, disk: Disk
) -> None:
    assert alter_topic(broker) == 0
    disk.is_full = True
    assert alter_quota(broker) == ErrorCode.REQUEST_TIMED_OUT
    broker.crash()
    disk.is_full = False
    broker.start()
    assert create(broker, "t") == ErrorCode.TOPIC_ALREADY_EXISTS
    assert broker.server.parts.dynamic_config.log_config("t").retention_ms == 1234567


def test_a_znode_file_that_was_deleted_is_there_after_a_restart(broker: Broker) -> None:
    path = broker.directory / "ottla-znodes.db"
    path.unlink()
    (broker.directory / "ottla-znodes.db-wal").unlink()
    assert create(broker, "after") == 0
    broker.crash()
    broker.start()
    for name in ("t", "after"):
        assert create(broker, name) == ErrorCode.TOPIC_ALREADY_EXISTS
    with sqlite3.connect(path) as connection:
        assert connection is not None
