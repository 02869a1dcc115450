"""A disk below its watermark: producers wait, all else continues, no restart is needed."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from ottla.broker.testing.embedded import Broker
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.doubles.eventually import eventually

SECONDS = 60.0
SETTING = "ottla.log.dir.min.free.bytes"
_TOPIC, _BROKER = 2, 4
MORE_THAN_ANY_DISK = 1 << 60


def alter(broker: Broker, kind: int, name: str, setting: str, value: str) -> None:
    resource = AlterConfigsResource(kind, name, [AlterableConfig(setting, 0, value)])
    with BlockingClient(broker.bootstrap) as client:
        response = client.call_once(IncrementalAlterConfigsRequest(resources=[resource]))
    assert isinstance(response, IncrementalAlterConfigsResponse)
    assert [each.error_code for each in response.responses] == [0]


def read(broker: Broker, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reads"})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    messages = consumer.consume(count, SECONDS)
    consumer.commit(message=messages[-1], asynchronous=False)
    consumer.close()
    return [message.value() for message in messages]


def test_producers_wait_for_room_while_the_rest_continues() -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic("t", 1), NewTopic("other", 1)]).values():
            future.result(SECONDS)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 50})
        producer.produce("t", b"before")
        assert producer.flush(SECONDS) == 0

        alter(broker, _BROKER, "", SETTING, str(MORE_THAN_ANY_DISK))
        directory = broker.server.parts.logs.directories.all[0]
        eventually(lambda: directory.is_full, "the free room was not checked")
        delivered: list[object] = []
        producer.produce("t", b"meanwhile", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(1.0)
        assert delivered == [], "a record was taken without room for it"

        assert read(broker, 1) == [b"before"], "reading and committing go on"
        alter(broker, _TOPIC, "t", "retention.ms", "1234567")
        for topic, future in admin.delete_topics(["other"]).items():
            assert future.result(SECONDS) is None, topic
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
        (found,) = admin.describe_configs([resource]).values()
        assert found.result(SECONDS)["retention.ms"].value == "1234567"
        assert delivered == []

        alter(broker, _BROKER, "", SETTING, "0")
        assert producer.flush(SECONDS) == 0
        assert delivered == [None]
        assert read(broker, 2) == [b"before", b"meanwhile"]
