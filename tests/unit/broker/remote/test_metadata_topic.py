"""RemoteLogMetadataTopic: errors of brokers and of the controller. What works is shown with a real
broker in tests/integration/test_remote_log_metadata.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.remote.metadata_topic import RemoteLogMetadataTopic
from ottla.broker.remote.settings import RemoteLogMetadataSettings
from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.storage.remote.metadata_records import REMOTE_LOG_METADATA_TOPIC
from ottla.storage.remote.remote_storage import RemoteStorageError


class Scripted:
    """The inter-broker client, the metadata cache and the controller."""

    timeout_ms = 1_000

    def __init__(self, response: Message | Exception | None = None) -> None:
        self.response = response
        self.created: list[NewTopic] = []
        self.code = int(ErrorCode.NONE)
        self.leader = 4
        self.topics: dict[str, Any] = {}

    @property
    def snapshot(self) -> Any:
        state = SimpleNamespace(leader=self.leader)
        return SimpleNamespace(topics=self.topics, partition=lambda topic, index: state)

    async def request_in_version(
        self, broker_id: int, api_key: int, newest_version: int, build: Callable[[int], Message]
    ) -> Message:
        assert broker_id == self.leader
        build(newest_version)
        if isinstance(self.response, Exception):
            raise self.response
        assert self.response is not None
        return self.response

    async def create_topics(self, topics: list[NewTopic]) -> dict[str, int]:
        self.created += topics
        return {topic.name: self.code for topic in topics}

    def topic(self) -> RemoteLogMetadataTopic:
        settings = RemoteLogMetadataSettings()
        return RemoteLogMetadataTopic(
            self,  # type: ignore[arg-type]
            *(self, self.create_topics, settings, lambda: 1_000),
        )


async def test_the_topic_is_created_with_kafkas_settings() -> None:
    scripted = Scripted()
    await scripted.topic().create()
    (created,) = scripted.created
    assert (created.num_partitions, created.replication_factor) == (50, 3)
    assert created.configs == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "remote.storage.enable": "false",
    }


async def test_a_topic_that_exists_is_not_created() -> None:
    scripted = Scripted()
    scripted.topics[REMOTE_LOG_METADATA_TOPIC] = SimpleNamespace(partitions={0: None})
    await scripted.topic().create()
    assert scripted.created == []
    assert scripted.topic().partition_count() == 1


async def test_a_refused_creation_has_the_reason() -> None:
    scripted = Scripted()
    scripted.code = ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(RemoteStorageError, match="factor 3: INVALID_REPLICATION_FACTOR"):
        await scripted.topic().create()
    scripted.code = ErrorCode.TOPIC_ALREADY_EXISTS  # another broker was first
    await scripted.topic().create()


async def test_without_a_leader_nothing_is_sent() -> None:
    scripted = Scripted()
    scripted.leader = -1
    assert scripted.topic().leader(0) is None
    with pytest.raises(RemoteStorageError, match="no leader"):
        await scripted.topic().append(0, b"value")


async def test_errors_of_the_leader_are_remote_storage_errors() -> None:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    name = REMOTE_LOG_METADATA_TOPIC
    produced = ProduceResponse([TopicProduceResponse(name, [PartitionProduceResponse(0, code)])])
    with pytest.raises(RemoteStorageError, match="NOT_LEADER_OR_FOLLOWER"):
        await Scripted(produced).topic().append(0, b"value")
    with pytest.raises(RemoteStorageError, match="no partition"):
        await Scripted(ProduceResponse()).topic().append(0, b"value")

    row = ListOffsetsPartitionResponse(0, code)
    listed = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name, [row])])
    with pytest.raises(RemoteStorageError, match="NOT_LEADER_OR_FOLLOWER"):
        await Scripted(listed).topic().offsets(4, 0)

    fetched = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    with pytest.raises(RemoteStorageError, match="UNKNOWN_SERVER_ERROR"):
        await Scripted(fetched).topic().fetch(4, {0: 0})


async def test_a_broker_that_cannot_be_reached_is_a_remote_storage_error() -> None:
    with pytest.raises(RemoteStorageError, match="broker 4 cannot be reached"):
        await Scripted(ConnectionError("refused")).topic().fetch(4, {0: 0})
