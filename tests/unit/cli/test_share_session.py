"""The share session of `ottla consume --share-group`: epochs, gaps, and sessions that are lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.cli.output import Failure
from ottla.cli.session import Session
from ottla.cli.share_session import AcknowledgeType, SharePartition, ShareSession
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import share_acknowledge as acknowledging
from ottla.protocol.messages import share_fetch as fetching
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import NewRecord

WHERE = SharePartition(b"t" * 16, 0)


class Leader:
    """Keeps the requests; returns one response after the other."""

    def __init__(self, *responses: Message) -> None:
        self._responses = list(responses)
        self.requests: list[Any] = []

    def call_once(self, request: Message, node: object) -> Message:
        self.requests.append(request)
        return self._responses.pop(0)

    def session(self) -> ShareSession:
        return ShareSession(cast(Session, SimpleNamespace(client=self)), 1, "g", "m")


def fetched(*acquired: tuple[int, int, int], code: int = 0) -> fetching.ShareFetchResponse:
    """A batch with the offsets 0 to 3 and these acquired ranges."""
    rows = [fetching.AcquiredRecords(*each) for each in acquired]
    records: list[NewRecord] = [(0, None, b"v", None)] * 4
    data = fetching.PartitionData(
        0, records=build_batch(records) if acquired else b"", acquired_records=rows
    )
    topic = fetching.ShareFetchableTopicResponse(WHERE.topic_id, [data])
    return fetching.ShareFetchResponse(error_code=code, responses=[topic])


def acknowledged(code: int = 0, row_code: int = 0) -> acknowledging.ShareAcknowledgeResponse:
    row = acknowledging.PartitionData(0, row_code)
    topic = acknowledging.ShareAcknowledgeTopicResponse(WHERE.topic_id, [row])
    return acknowledging.ShareAcknowledgeResponse(error_code=code, responses=[topic])


def batches(request: Any) -> list[tuple[int, int, list[int]]]:
    rows = request.topics[0].partitions[0].acknowledgement_batches
    return [(row.first_offset, row.last_offset, list(row.acknowledge_types)) for row in rows]


def test_only_acquired_records_are_given_and_gaps_are_acknowledged_as_gaps() -> None:
    leader = Leader(fetched((1, 2, 1), (3, 5, 2)), acknowledged())
    session = leader.session()
    records, moved = session.fetch(frozenset([WHERE]), 10, 0)
    assert [(item.record.offset, item.delivery_count) for item in records] == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]
    assert moved == set()
    for item in records[:2]:
        session.set_type(item, AcknowledgeType.ACCEPT)
    assert session.acknowledge() == 0
    # One type for a whole batch; what no type was set for is released.
    assert batches(leader.requests[1]) == [(1, 2, [1]), (3, 5, [2, 0, 0])]
    assert [request.share_session_epoch for request in leader.requests] == [0, 1]
    assert session.acknowledge() == 0  # nothing is left, so nothing is sent


def test_partitions_are_sent_once_and_forgotten_when_they_are_not_wanted() -> None:
    leader = Leader(fetched(), fetched(), fetched())
    session = leader.session()
    for wanted in ([WHERE], [WHERE], []):
        session.fetch(frozenset(wanted), 10, 0)
    first, second, third = leader.requests
    assert [row.partition_index for row in first.topics[0].partitions] == [0]
    assert (second.topics, second.forgotten_topics_data) == ([], [])
    assert third.forgotten_topics_data[0].partitions == [0]
    assert [request.share_session_epoch for request in leader.requests] == [0, 1, 2]


@pytest.mark.parametrize(
    "code", [ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH]
)
def test_a_lost_session_begins_again_without_the_acknowledgements(code: int) -> None:
    leader = Leader(fetched((0, 3, 1)), acknowledged(code), fetched(code=code), fetched())
    session = leader.session()
    session.fetch(frozenset([WHERE]), 10, 0)
    assert session.acknowledge() == 4  # delivered again
    session.fetch(frozenset([WHERE]), 10, 0)
    session.fetch(frozenset([WHERE]), 10, 0)
    assert [request.share_session_epoch for request in leader.requests] == [0, 1, 0, 0]
    assert leader.requests[3].topics[0].partitions[0].partition_index == 0


def test_ended_locks_are_counted_and_other_errors_are_reported() -> None:
    lost = acknowledged(row_code=ErrorCode.INVALID_RECORD_STATE)
    denied = acknowledged(row_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    leader = Leader(fetched((0, 1, 1)), lost, fetched((0, 1, 2)), denied)
    session = leader.session()
    session.fetch(frozenset([WHERE]), 10, 0)
    assert session.acknowledge() == 2
    session.fetch(frozenset([WHERE]), 10, 0)
    with pytest.raises(Failure, match="TOPIC_AUTHORIZATION_FAILED"):
        session.acknowledge()


def test_a_moved_partition_is_returned_and_the_session_ends_with_the_final_epoch() -> None:
    response = fetched()
    response.responses[0].partitions[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = Leader(response, acknowledged())
    session = leader.session()
    session.close()  # never begun
    assert session.fetch(frozenset([WHERE]), 10, 0) == ([], {WHERE})
    session.close()
    assert [request.share_session_epoch for request in leader.requests] == [0, -1]
