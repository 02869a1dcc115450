"""DeleteRecords: the log start offset moves up."""

from __future__ import annotations

import pytest

from ottla.broker.handlers.records.delete_records import DeleteRecordsHandler
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition
from tests.doubles.fetched import FetchMessages
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.request_context import Asked


class Scene(Replicas):
    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.handler = DeleteRecordsHandler(self.manager)

    def delete(self, offset: int, version: int = 2, topic: str = TOPIC, index: int = 0) -> Asked:
        rows = [DeleteRecordsPartition(index, offset)]
        request = DeleteRecordsRequest([DeleteRecordsTopic(topic, rows)], 1000)
        return Asked(self.handler.handle, request, version)

    def follower_fetches(self, offset: int, start: int) -> None:
        """Broker 2 says in a fetch where its log starts."""
        position = FetchPartition(0, fetch_offset=offset, log_start_offset=start)
        FetchMessages(self.manager, position, replica_id=2, max_wait_ms=0)


def result(asked: Asked) -> DeleteRecordsPartitionResult:
    return asked.response(DeleteRecordsResponse).topics[0].partitions[0]


def outcome(asked: Asked) -> tuple[int, int]:
    row = result(asked)
    return row.error_code, row.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_records_before_an_offset_go(version: int) -> None:
    scene = Scene()
    scene.lead()
    scene.append(5)
    assert outcome(scene.delete(3, version)) == (0, 3)
    assert scene.log().log_start_offset == 3
    # The start never goes back.
    assert outcome(scene.delete(1, version)) == (0, 3)
    assert outcome(scene.delete(-1, version)) == (0, 5)
    assert scene.log().log_start_offset == 5


@pytest.mark.parametrize(
    ("offset", "code"), [(6, ErrorCode.OFFSET_OUT_OF_RANGE), (-2, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
def test_offsets_that_are_not_there(offset: int, code: int) -> None:
    scene = Scene()
    scene.lead()
    scene.append(5)
    assert outcome(scene.delete(offset)) == (code, -1)
    assert scene.log().log_start_offset == 0


@pytest.mark.parametrize(("first", "last", "code"), [(4, 2, 0), (9, 2, 0), (2, 9, 1)])
def test_of_a_partition_that_is_there_twice_the_last_offset_counts(
    first: int, last: int, code: int
) -> None:
    scene = Scene()
    scene.lead()
    scene.append(5)
    topics = [
        DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, first)]),
        DeleteRecordsTopic("empty", []),
        DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, last)]),
    ]
    asked = Asked(scene.handler.handle, DeleteRecordsRequest(topics, 1000), 2)
    (topic,) = asked.response(DeleteRecordsResponse).topics
    assert [(row.error_code, row.low_watermark) for row in topic.partitions] == [
        (code, -1 if code else last)
    ]
    assert scene.log().log_start_offset == (0 if code else last)


def test_partitions_that_are_not_led_here() -> None:
    scene = Scene()
    scene.follow(2)
    assert outcome(scene.delete(0)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert outcome(scene.delete(0, index=1)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_coordinators_topics_are_not_cut(topic: str) -> None:
    assert outcome(Scene().delete(0, topic=topic)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_compacted_topics_are_not_cut() -> None:
    scene = Scene(cleanup_policy=("compact",))
    scene.lead()
    scene.append(5)
    assert outcome(scene.delete(1)) == (ErrorCode.POLICY_VIOLATION, -1)


def test_the_response_waits_for_live_followers() -> None:
    scene = Scene()
    scene.lead(replicas=[1, 2], isr=[1])
    scene.append(5)
    asked = scene.delete(3)
    assert asked.is_pending
    scene.timer.advance(1001)
    # The follower has not said yet where its log starts.
    assert outcome(asked) == (ErrorCode.REQUEST_TIMED_OUT, -1)


def test_a_follower_that_follows_lets_it_go() -> None:
    scene = Scene()
    scene.lead(replicas=[1, 2], isr=[1])
    scene.append(5)
    asked = scene.delete(3)
    scene.follower_fetches(5, start=1)
    assert asked.is_pending
    scene.follower_fetches(5, start=3)
    assert outcome(asked) == (0, 3)


def test_the_request_fails_when_the_broker_is_no_longer_leader() -> None:
    scene = Scene()
    scene.lead(replicas=[1, 2], isr=[1])
    scene.append(5)
    asked = scene.delete(3)
    scene.follower_fetches(5, start=1)
    scene.follow(2, epoch=1)
    assert outcome(asked) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_dead_follower_is_not_waited_for() -> None:
    scene = Scene()
    scene.lead(replicas=[1, 2], isr=[1])
    scene.append(5)
    scene.live.remove(2)
    assert outcome(scene.delete(3)) == (0, 3)
