from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.cluster.endpoints import Endpoints
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.metadata.describe_topic_partitions import TopicPartitionsHandler
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.fake_metadata import Metadata

METADATA = Metadata(a=3, b=2, c=1)


def ask(
    *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None, most: int = 2000
) -> DescribeTopicPartitionsResponse:
    metadata = cast(MetadataCache, METADATA)
    handler = TopicPartitionsHandler(metadata, Endpoints(1, metadata, frozenset()), most)
    request = DescribeTopicPartitionsRequest(
        [TopicRequest(name) for name in names],
        limit,
        None if cursor is None else DescribeTopicPartitionsRequestCursor(*cursor),
    )
    return Asked(handler.handle, request, 0).response(DescribeTopicPartitionsResponse)


def shown(response: DescribeTopicPartitionsResponse) -> dict[str | None, list[int]]:
    return {
        topic.name: [row.partition_index for row in topic.partitions] for topic in response.topics
    }


def test_all_topics() -> None:
    response = ask()
    assert shown(response) == {"a": [0, 1, 2], "b": [0, 1], "c": [0]}
    assert response.next_cursor is None
    row = response.topics[0].partitions[0]
    assert (row.leader_id, row.replica_nodes, row.isr_nodes) == (1, [1], [1])
    assert (row.eligible_leader_replicas, row.last_known_elr) == ([], [])


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_page_by_page_it_is_the_same(limit: int) -> None:
    found: dict[str | None, list[int]] = {}
    cursor: tuple[str, int] | None = None
    for _ in range(10):
        response = ask(limit=limit, cursor=cursor)
        for name, rows in shown(response).items():
            found.setdefault(name, []).extend(rows)
        assert sum(len(topic.partitions) for topic in response.topics) <= limit
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert found == shown(ask())


def test_the_broker_has_a_limit_too() -> None:
    response = ask(most=2)
    assert shown(response) == {"a": [0, 1]}
    assert response.next_cursor is not None
    assert (response.next_cursor.topic_name, response.next_cursor.partition_index) == ("a", 2)


def test_a_limit_of_nothing_is_one() -> None:
    assert shown(ask(limit=0)) == {"a": [0]}


def test_topics_by_name_are_sorted_and_errors_among_them() -> None:
    response = ask("c", "gone", "a b", "a")
    assert [topic.name for topic in response.topics] == ["a", "a b", "c", "gone"]
    assert [topic.error_code for topic in response.topics] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_cursor_has_to_make_sense() -> None:
    with pytest.raises(KafkaError, match="should contain the cursor topic"):
        ask("a", cursor=("b", 0))
    with pytest.raises(KafkaError, match="must be valid"):
        ask(cursor=("a", -1))


def test_a_cursor_at_a_topic_that_is_gone_continues_behind_it() -> None:
    assert shown(ask(cursor=("aa", 0))) == {"b": [0, 1], "c": [0]}
