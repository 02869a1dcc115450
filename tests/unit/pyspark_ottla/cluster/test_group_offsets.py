"""Committed offsets of a group, read and written without being in it."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import parse_client_options
from tests.doubles.scripted_client import ScriptedClient

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient({"t": 2})


def cluster(client: ScriptedClient) -> KafkaCluster:
    options = parse_client_options({"kafka.bootstrap.servers": "b:1"}, writes=False)
    return KafkaCluster(client.as_client, options)


def fetched(*rows: tuple[int, int, int], code: int = 0) -> OffsetFetchResponse:
    partitions = [
        OffsetFetchResponsePartition(partition_index=p, committed_offset=o, error_code=c)
        for p, o, c in rows
    ]
    topics = [OffsetFetchResponseTopic(name="t", partitions=partitions)]
    return OffsetFetchResponse(topics=topics, error_code=code)


def test_partitions_without_an_offset_are_left_out(client: ScriptedClient) -> None:
    client.response(OffsetFetchRequest, lambda request: fetched((0, 7, 0), (1, -1, 0)))
    assert cluster(client).committed("g", [A, B]) == {A: 7}
    [(_, request)] = client.sent
    assert isinstance(request, OffsetFetchRequest)
    assert (request.group_id, request.topics[0].partition_indexes) == ("g", [0, 1])  # type: ignore[index] # it is no null here


@pytest.mark.parametrize(
    "response",
    [
        fetched(code=ErrorCode.GROUP_AUTHORIZATION_FAILED),
        fetched((0, -1, ErrorCode.GROUP_AUTHORIZATION_FAILED)),
    ],
)
def test_a_group_one_may_not_see(client: ScriptedClient, response: OffsetFetchResponse) -> None:
    client.response(OffsetFetchRequest, lambda request: response)
    with pytest.raises(ConnectorError, match=r"NOT_AUTHORIZED.*offsets of the group g"):
        cluster(client).committed("g", [A])


@pytest.mark.parametrize(
    "loading",
    [
        fetched(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        fetched((0, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT)),
    ],
)
def test_a_coordinator_that_loads_for_longer_than_a_request(
    client: ScriptedClient, loading: OffsetFetchResponse
) -> None:
    responses = [loading, loading, fetched((0, 7, 0))]
    client.response(OffsetFetchRequest, lambda request: responses.pop(0))
    assert cluster(client).committed("g", [A]) == {A: 7}
    client.response(OffsetFetchRequest, lambda request: loading)
    options = {"kafka.bootstrap.servers": "b:1", "kafka.default.api.timeout.ms": "300"}
    calls = KafkaCluster(client.as_client, parse_client_options(options, writes=False))
    with pytest.raises(ConnectorError, match=r"offsets of the group g failed"):
        calls.committed("g", [A])


def committed(*codes: int) -> OffsetCommitResponse:
    partitions = [
        OffsetCommitResponsePartition(partition_index=number, error_code=code)
        for number, code in enumerate(codes)
    ]
    topics = [OffsetCommitResponseTopic(name="t", partitions=partitions)]
    return OffsetCommitResponse(topics=topics)


def test_a_commit_is_that_of_a_group_without_members(client: ScriptedClient) -> None:
    client.response(OffsetCommitRequest, lambda request: committed(0, 0))
    cluster(client).commit("g", {B: 9, A: 3}, 1000)
    [(_, request)] = client.sent
    assert isinstance(request, OffsetCommitRequest)
    assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
    rows = request.topics[0].partitions
    assert [(row.partition_index, row.committed_offset) for row in rows] == [(0, 3), (1, 9)]


def test_a_deleted_topic_has_no_position_to_show(client: ScriptedClient) -> None:
    client.response(
        OffsetCommitRequest,
        lambda request: committed(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    )
    cluster(client).commit("g", {A: 3, B: 4}, 1000)


def test_a_group_with_members_refuses(client: ScriptedClient) -> None:
    client.response(OffsetCommitRequest, lambda request: committed(ErrorCode.UNKNOWN_MEMBER_ID))
    with pytest.raises(
        ConnectorError, match=r"Committing offsets of the group g failed .UNKNOWN_M"
    ):
        cluster(client).commit("g", {A: 3}, 1000)
