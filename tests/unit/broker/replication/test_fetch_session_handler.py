from __future__ import annotations

import pytest

from ottla.broker.replication.fetch_session_handler import FetchSessionHandler, PartitionFetchState
from ottla.broker.replication.fetch_sessions import FetchSessions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, PartitionData
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition

ID, OTHER_ID = b"1" * 16, b"2" * 16
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def wanted(offset: int = 0, topic_id: bytes = ID) -> PartitionFetchState:
    return PartitionFetchState(topic_id, offset, 5, 4, 0)


def fill(
    session: FetchSessionHandler,
    positions: dict[TopicPartition, PartitionFetchState],
    ids: bool = True,
) -> FetchRequest:
    request = FetchRequest()
    run_at_once(session.fill(request, positions, ids))
    return request


def positions_in(request: FetchRequest) -> list[tuple[int, int]]:
    """(partition, offset) of everything that is named."""
    return [
        (row.partition, row.fetch_offset) for topic in request.topics for row in topic.partitions
    ]


def forgotten(request: FetchRequest) -> list[tuple[bytes, list[int]]]:
    return [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data]


@pytest.fixture
def session() -> FetchSessionHandler:
    """A session with both partitions at offset 0."""
    session = FetchSessionHandler(1000)
    fill(session, {ZERO: wanted(), ONE: wanted()})
    assert session.handle_response(0, 77)
    return session


def test_the_first_request_opens_a_session_with_everything() -> None:
    request = fill(FetchSessionHandler(1000), {ZERO: wanted(), ONE: wanted(7)})
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert positions_in(request) == [(0, 0), (1, 7)]
    (topic,) = request.topics
    assert (topic.topic_id, topic.topic) == (ID, "")
    row = topic.partitions[0]
    assert (row.current_leader_epoch, row.last_fetched_epoch, row.log_start_offset) == (5, 4, 0)
    assert row.partition_max_bytes == 1000


def test_topics_by_name_for_old_leaders() -> None:
    request = fill(FetchSessionHandler(1000), {ZERO: wanted()}, ids=False)
    assert [topic.topic for topic in request.topics] == ["t"]


def test_only_what_moved_is_named_again(session: FetchSessionHandler) -> None:
    request = fill(session, {ZERO: wanted(3), ONE: wanted()})
    assert (request.session_id, request.session_epoch) == (77, 1)
    assert positions_in(request) == [(0, 3)]
    assert session.handle_response(0, 77)
    request = fill(session, {ZERO: wanted(3), ONE: wanted()})
    assert (request.session_epoch, positions_in(request)) == (2, [])


def test_the_names_are_those_of_the_topics_that_are_wanted(session: FetchSessionHandler) -> None:
    fill(session, {ZERO: wanted(3), ONE: wanted()})
    assert session.names == {ID: "t"}
    fill(session, {ZERO: wanted(0, OTHER_ID), ONE: wanted(0, OTHER_ID)})
    assert session.names == {OTHER_ID: "t"}, "the topic was created again"
    fill(session, {TopicPartition("u", 0): wanted(), ONE: wanted(0, OTHER_ID)})
    assert session.names == {ID: "u", OTHER_ID: "t"}


def test_what_is_not_wanted_any_more_is_forgotten(session: FetchSessionHandler) -> None:
    request = fill(session, {ZERO: wanted()})
    assert positions_in(request) == []
    assert forgotten(request) == [(ID, [1])]


def test_a_topic_created_again_is_forgotten_and_named(session: FetchSessionHandler) -> None:
    request = fill(session, {ZERO: wanted(topic_id=OTHER_ID), ONE: wanted()})
    assert positions_in(request) == [(0, 0)]
    assert [topic.topic_id for topic in request.topics] == [OTHER_ID]
    assert forgotten(request) == [(ID, [0])]


def test_by_name_a_topic_created_again_stays_in_the_session() -> None:
    """The leader removes what is forgotten after it has added what is named."""
    sessions = FetchSessions(1, lambda: 0)
    session = FetchSessionHandler(1000)
    for topic_id in (ID, OTHER_ID):
        request = fill(session, {ZERO: wanted(topic_id=topic_id)}, ids=False)
        found = run_at_once(sessions.context(request, 12, {}, is_follower=True))
        items = found.items
        assert [item.key for item in items] == [("t", 0)]
        results = [(item, PartitionData(0)) for item in items]
        code, session_id, _ = run_at_once(found.finish(results))
        assert session.handle_response(code, session_id)
    assert forgotten(request) == []


def test_a_session_with_ids_and_then_with_names_is_renewed() -> None:
    """A topic without id has come; and gone."""
    sessions = FetchSessions(4, lambda: 0)
    session = FetchSessionHandler(1000)
    for ids in (True, False, False, True):
        request = fill(session, {ZERO: wanted()}, ids=ids)
        version = 17 if ids else 12
        found = run_at_once(sessions.context(request, version, {ID: "t"}, is_follower=True))
        assert found.error_code == ErrorCode.NONE
        items = found.items
        assert [item.key for item in items] == [("t", 0)]
        results = [(item, PartitionData(0)) for item in items]
        code, session_id, _ = run_at_once(found.finish(results))
        assert session.handle_response(code, session_id)
        assert len(sessions.cache) == 1


def test_one_partition_comes_when_another_goes(session: FetchSessionHandler) -> None:
    other = TopicPartition("t", 2)
    request = fill(session, {ZERO: wanted(), other: wanted()})
    assert positions_in(request) == [(2, 0)]
    assert forgotten(request) == [(ID, [1])]


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
def test_a_lost_session_is_opened_again(session: FetchSessionHandler, code: int) -> None:
    assert not session.handle_response(code, 0)
    request = fill(session, {ZERO: wanted(), ONE: wanted()})
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert positions_in(request) == [(0, 0), (1, 0)]


def test_a_renewed_session_closes_the_old_one(session: FetchSessionHandler) -> None:
    session.renew()
    request = fill(session, {ZERO: wanted(), ONE: wanted()})
    assert (request.session_id, request.session_epoch) == (77, 0)
    assert positions_in(request) == [(0, 0), (1, 0)]
    assert session.handle_response(0, 78)
    request = fill(session, {ZERO: wanted(), ONE: wanted()})
    assert (request.session_id, request.session_epoch, request.topics) == (78, 1, [])


def test_a_leader_without_room_for_a_session_is_sent_everything_each_time() -> None:
    session = FetchSessionHandler(1000)
    for _ in range(2):
        request = fill(session, {ZERO: wanted()})
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert positions_in(request) == [(0, 0)]
        assert session.handle_response(0, 0)


def test_other_errors_leave_the_session_alone(session: FetchSessionHandler) -> None:
    assert not session.handle_response(ErrorCode.UNKNOWN_SERVER_ERROR, 77)
    assert fill(session, {ZERO: wanted(), ONE: wanted()}).session_id == 77


def test_epochs_begin_again_at_one() -> None:
    session = FetchSessionHandler(1000)
    fill(session, {ZERO: wanted()})
    session.handle_response(0, 77)
    session._epoch = 0x7FFFFFFF
    session.handle_response(0, 77)
    assert fill(session, {ZERO: wanted()}).session_epoch == 1
