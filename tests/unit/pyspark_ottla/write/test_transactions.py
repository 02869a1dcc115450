"""One task's transaction: what is asked of whom, and what a marker says when it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import parse_client_options
from pyspark_ottla.write.producing import ProducerIdentity
from pyspark_ottla.write.transactions import Marker, TaskTransaction, Written
from tests.doubles.scripted_client import ScriptedClient

PLACE = TopicPartition("t", 0)


class Coordinator(ScriptedClient):
    """A coordinator that says yes, unless a code waits for the request's class."""

    def __init__(self) -> None:
        super().__init__({"t": 2})
        self.codes: dict[type[Message], list[int]] = {}
        self.metadata_text: str | None = None
        self.committed = -1
        for kind, function in (
            (InitProducerIdRequest, self._init),
            (AddPartitionsToTxnRequest, self._add_partitions),
            (AddOffsetsToTxnRequest, self._add_offsets),
            (TxnOffsetCommitRequest, self._commit_offsets),
            (EndTxnRequest, self._end),
            (OffsetFetchRequest, self._fetch),
        ):
            self.response(kind, function)

    def _code(self, request: Message) -> int:
        waiting = self.codes.get(type(request), [])
        return waiting.pop(0) if waiting else 0

    def _init(self, request: Any) -> Message:
        code = self._code(request)
        return InitProducerIdResponse(error_code=code, producer_id=42, producer_epoch=3)

    def _add_partitions(self, request: Any) -> Message:
        code = self._code(request)
        topics = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _add_offsets(self, request: Any) -> Message:
        return AddOffsetsToTxnResponse(error_code=self._code(request))

    def _commit_offsets(self, request: Any) -> Message:
        row = request.topics[0].partitions[0]
        code = self._code(request)
        if code == 0:
            self.committed, self.metadata_text = row.committed_offset, row.committed_metadata
        rows = [TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)]
        return TxnOffsetCommitResponse(
            topics=[TxnOffsetCommitResponseTopic(name="t", partitions=rows)]
        )

    def _end(self, request: Any) -> Message:
        return EndTxnResponse(error_code=self._code(request))

    def _fetch(self, request: Any) -> Message:
        assert request.require_stable
        row = OffsetFetchResponsePartition(
            partition_index=0, committed_offset=self.committed, metadata=self.metadata_text
        )
        return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[row])])


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def transaction(coordinator: Coordinator) -> TaskTransaction:
    given = {"kafka.bootstrap.servers": "b:1", "kafka.default.api.timeout.ms": "300"}
    options = parse_client_options(given, writes=True)
    cluster = KafkaCluster(coordinator.as_client, options)
    return TaskTransaction(cluster, "prefix-query-7", 60_000)


def kinds(coordinator: Coordinator) -> list[str]:
    return [request.NAME.removesuffix("Request") for _, request in coordinator.sent]


def test_the_course_of_a_task(coordinator: Coordinator) -> None:
    task = transaction(coordinator)
    task.begin()
    assert task.identity == ProducerIdentity(42, 3, "prefix-query-7")
    assert task.marker(PLACE) == Marker(0, None)
    task.add_partitions([PLACE, TopicPartition("t", 1)])
    written = Written(5, 10, 200)
    task.set_marker(PLACE, Marker(9, written))
    task.end(committed=True)
    assert kinds(coordinator) == [
        "InitProducerId",
        "OffsetFetch",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn",
    ]
    assert transaction(coordinator).marker(PLACE) == Marker(9, written)


@pytest.mark.parametrize("text", [None, "", "{}", "[1]", '"x"', "[1,2,null]"])
def test_a_marker_with_a_strange_text_is_a_marker(
    coordinator: Coordinator, text: str | None
) -> None:
    coordinator.committed, coordinator.metadata_text = 4, text
    assert transaction(coordinator).marker(PLACE) == Marker(4, None)


@pytest.mark.parametrize("kind", [AddPartitionsToTxnRequest, TxnOffsetCommitRequest])
def test_codes_inside_responses_are_waited_out(
    coordinator: Coordinator, kind: type[Message]
) -> None:
    coordinator.codes[kind] = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]
    task = transaction(coordinator)
    task.begin()
    task.add_partitions([PLACE])
    task.set_marker(PLACE, Marker(1, Written(0, 0, 0)))
    assert sum(isinstance(request, kind) for _, request in coordinator.sent) == 3


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.PRODUCER_FENCED, "another attempt of the task prefix-query-7 has taken over"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "WRITE_FAILED.*taken over"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "NOT_AUTHORIZED"),
        (ErrorCode.INVALID_TXN_STATE, "Committing a transaction .prefix-query-7. failed"),
    ],
)
def test_final_codes(coordinator: Coordinator, code: int, text: str) -> None:
    coordinator.codes[EndTxnRequest] = [code]
    task = transaction(coordinator)
    task.begin()
    with pytest.raises(ConnectorError, match=text):
        task.end(committed=True)


def test_a_coordinator_that_stays_busy(coordinator: Coordinator) -> None:
    coordinator.codes[AddPartitionsToTxnRequest] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 100
    task = transaction(coordinator)
    task.begin()
    with pytest.raises(ConnectorError, match="CONCURRENT_TRANSACTIONS"):
        task.add_partitions([PLACE])
