"""Topics created through a controller in another process: its request and response."""

from __future__ import annotations

from typing import cast

from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.message import Message
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def create_topics_request(topics: list[NewTopic], timeout_ms: int) -> CreateTopicsRequest:
    """The request for these topics."""
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                [
                    CreatableReplicaAssignment(index, list(replicas))
                    for index, replicas in (topic.assignments or {}).items()
                ],
                [
                    CreatableTopicConfig(name, value)
                    for name, value in (topic.configs or {}).items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
    )


def create_topics_response(response: Message) -> dict[str, int]:
    """An error code by topic."""
    rows = cast("CreateTopicsResponse", response).topics
    return {row.name: row.error_code for row in rows}
