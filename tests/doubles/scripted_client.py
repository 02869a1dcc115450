"""A blocking client without a socket: responses come from functions by request class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.cluster import Address, ClusterState, Leader
from ottla.protocol.client.operations import Route, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import TopicPartition


class ScriptedClient:
    """Topics are a dict that tests change; other requests are handled by `response(class, ...)`."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.state = ClusterState([Address("b", 1)])
        self.topics = topics
        self.topic_errors: dict[str, int] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.cluster_id: str | None = None
        self.internal: set[str] = set()
        self.leaderless: set[TopicPartition] = set()
        self.created_when_asked: dict[str, int] = {}
        self.failures: list[Exception] = []
        self.empty_responses = 0  # of a broker that has just started
        self.sent: list[tuple[int | None, Message]] = []
        self.metadata_requests = 0
        self.closed = False
        self._responses: dict[type[Message], Callable[[Any], Message | Exception]] = {}

    @property
    def as_client(self) -> BlockingClient:
        return cast(BlockingClient, self)

    def response(
        self, request: type[Message], function: Callable[[Any], Message | Exception]
    ) -> None:
        self._responses[request] = function

    def metadata(
        self,
        topics: list[str] | None = None,
        *,
        allow_auto_topic_creation: bool = False,
        timeout_ms: int | None = None,
    ) -> MetadataResponse:
        self.metadata_requests += 1
        if self.failures:
            raise self.failures.pop(0)
        if allow_auto_topic_creation:
            self.topics.update(self.created_when_asked)
        if self.empty_responses:
            self.empty_responses -= 1
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows = [MetadataResponseTopic(name=name, error_code=unknown) for name in topics or []]
            self.state.update(MetadataResponse(topics=rows))
            return MetadataResponse(topics=rows)
        names = sorted(self.topics) if topics is None else topics
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=n, host="b", port=n + 1) for n in (0, 1)],
            cluster_id=self.cluster_id,
            topics=[self._topic(name) for name in names],
        )
        self.state.update(response)
        return response

    def _topic(self, name: str) -> MetadataResponseTopic:
        count = self.topics.get(name, 0)
        unknown = ErrorCode.NONE if count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(
            name=name,
            error_code=self.topic_errors.get(name, unknown),
            is_internal=name in self.internal,
            topic_id=self.topic_ids.get(name, bytes(16)),
            partitions=[
                MetadataResponsePartition(
                    partition_index=number,
                    leader_id=-1 if TopicPartition(name, number) in self.leaderless else number % 2,
                )
                for number in range(count)
            ],
        )

    def leader(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> Leader:
        return self.state.leader(partition) or Leader(partition.partition % 2, 0)

    def forget_leader(self, partition: TopicPartition) -> None:
        self.state.forget_topic(partition.topic)

    def send(
        self,
        node_id: int | None,
        request: Message,
        *,
        timeout_ms: int | None = None,
        versions: Versions | None = None,
    ) -> Message:
        self.sent.append((node_id, request))
        response = self._responses[type(request)](request)
        if isinstance(response, Exception):
            raise response
        return response

    def call(
        self,
        request: Message,
        route: Route | None = None,
        *,
        timeout_ms: int | None = None,
        versions: Versions | None = None,
        resend: bool | None = None,
    ) -> Message:
        return self.send(None, request, timeout_ms=timeout_ms, versions=versions)

    def close(self) -> None:
        self.closed = True
