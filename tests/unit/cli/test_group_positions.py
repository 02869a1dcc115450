"""Committed offsets of a group as the command line reads and writes them."""

from typing import Any, cast

import pytest

from ottla.cli.group_positions import all_committed, commit, committed
from ottla.cli.output import Failure
from ottla.cli.session import Session
from ottla.protocol.client.operations import GROUP, CoordinatorOf
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import offset_commit, offset_fetch
from ottla.protocol.topics import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Coordinator:
    """A session that gives one response to the requests about group g."""

    def __init__(self, response: Message) -> None:
        self._response = response
        self.requests: list[Any] = []

    def call(self, kind: type, request: Message, to: object, versions: object = None) -> Message:
        assert isinstance(to, CoordinatorOf)
        assert (to.key, to.key_type) == ("g", GROUP)
        assert isinstance(self._response, kind)
        self.requests.append(request)
        return self._response


def fetched(group_code: int = 0, row_code: int = 0) -> Coordinator:
    row = offset_fetch.OffsetFetchResponsePartitions
    rows = [row(0, 5, -1, "note", row_code), row(1, -1, -1, None, 0)]
    topics = [offset_fetch.OffsetFetchResponseTopics("t", rows)]
    group = offset_fetch.OffsetFetchResponseGroup("g", topics, group_code)
    return Coordinator(offset_fetch.OffsetFetchResponse(groups=[group]))


def test_partitions_without_a_commit_are_left_out() -> None:
    session = cast(Session, fetched())
    assert all_committed(session, "g") == {T0: (5, "note")}
    assert committed(session, "g", [T0, T1, U0]) == {T0: 5}


@pytest.mark.parametrize("codes", [(ErrorCode.GROUP_AUTHORIZATION_FAILED, 0), (0, 3)])
def test_errors_of_the_group_and_of_a_partition_are_reported(codes: tuple[int, int]) -> None:
    with pytest.raises(Failure, match="group g"):
        all_committed(cast(Session, fetched(*codes)), "g")


def committing(code: int) -> Coordinator:
    rows = [offset_commit.OffsetCommitResponsePartition(0, code)]
    topics = [offset_commit.OffsetCommitResponseTopic("u", rows)]
    return Coordinator(offset_commit.OffsetCommitResponse(topics=topics))


def test_a_commit_without_a_member() -> None:
    session = committing(ErrorCode.NONE)
    commit(cast(Session, session), "g", {T0: 1, U0: 2, T1: 3})
    (request,) = session.requests
    assert (request.group_id, request.member_id) == ("g", "")
    written = {
        (topic.name, row.partition_index): row.committed_offset
        for topic in request.topics
        for row in topic.partitions
    }
    assert written == {("t", 0): 1, ("t", 1): 3, ("u", 0): 2}
    assert len(request.topics) == 2


def test_a_group_with_members_takes_no_commit() -> None:
    with pytest.raises(Failure, match="group g, u-0"):
        commit(cast(Session, committing(ErrorCode.UNKNOWN_MEMBER_ID)), "g", {U0: 2})
