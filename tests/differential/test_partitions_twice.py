"""Requests with a partition, or a topic, twice: which one counts, and how many rows come back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch
from tests.differential.asking import Pair
from tests.differential.transaction_scripts import init, prepare
from tests.doubles.transcript import Transcript

pytestmark = pytest.mark.kafka

IGNORED = ("error_message", "message", "batch_index_error_message", "log_start_offset")
Value = Any


def topics_of(
    topic: Callable[[str, list[Any]], Any],
    row: Callable[[int, Value], Any],
    name: str,
    *values: Value,
) -> list[list[Any]]:
    """The topics of requests with partition 0 twice, with different values."""
    first, second = values
    other = f"absent-{name}"
    return [
        [topic(name, [row(0, first), row(0, second)])],
        [topic(name, [row(0, second), row(1, first), row(0, first)])],
        [topic(name, [row(0, first)]), topic(name, [row(1, first), row(0, second)])],
        [
            topic(name, [row(0, second)]),
            topic(other, [row(0, first)]),
            topic(name, [row(0, first)]),
        ],
        [topic(name, [row(7, first), row(7, second)])],
        [topic(other, [row(0, first), row(0, second)])],
        [topic(name, [])],
    ]


def batch(count: int) -> bytes:
    return build_batch([(1_700_000_000_000 + n, b"k", b"v", []) for n in range(count)])


def new_topic(pair: Pair) -> str:
    name = f"twice-{uuid.uuid4().hex[:8]}"
    pair.compare(CreateTopicsRequest([CreatableTopic(name, 2, 1, [], [])], 30_000), [4])
    return name


def end_offsets(name: str, timestamp: int = -1) -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(index, timestamp=timestamp) for index in (0, 1)]
    return ListOffsetsRequest(-1, topics=[ListOffsetsTopic(name, rows)])


def produce(topics: list[TopicProduceData]) -> ProduceRequest:
    return ProduceRequest(None, -1, 10_000, topics)


def produce_data(index: int, records: bytes) -> PartitionProduceData:
    return PartitionProduceData(index, records)


def test_produce(pair: Pair) -> None:
    name = new_topic(pair)
    values = [(batch(1), batch(3)), (batch(2), b"junk"), (b"junk", batch(5)), (b"", b"junk")]
    for first, second in values:
        # Kafka looks at the partition before it looks at the records, Ottla afterwards.
        all_topics = topics_of(TopicProduceData, produce_data, name, first, second)
        for topics in all_topics[: 7 if second == batch(3) else 3]:
            pair.compare(produce(topics), [3, 9, 11], IGNORED)
            pair.compare(end_offsets(name), [7])


def requests(name: str) -> list[tuple[str, list[int], list[Message]]]:
    """(name, versions, requests)"""
    fetch = partial(
        FetchRequest, replica_id=-1, max_wait_ms=10, min_bytes=0, max_bytes=1 << 20,
        session_id=0, session_epoch=-1,
    )  # fmt: skip

    def fetched(index: int, offset: int) -> FetchPartition:
        return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)

    def listed(index: int, timestamp: int) -> ListOffsetsPartition:
        return ListOffsetsPartition(index, timestamp=timestamp)

    def epoch(index: int, leader_epoch: int) -> OffsetForLeaderPartition:
        return OffsetForLeaderPartition(partition=index, leader_epoch=leader_epoch)

    def committed(index: int, offset: int) -> OffsetCommitRequestPartition:
        return OffsetCommitRequestPartition(index, offset, committed_metadata="")

    def commit(topics: list[OffsetCommitRequestTopic]) -> OffsetCommitRequest:
        return OffsetCommitRequest(group_id=name, topics=topics)

    def found(topic: str, rows: list[int]) -> OffsetFetchRequestTopic:
        return OffsetFetchRequestTopic(topic, rows)

    offsets = [
        OffsetFetchRequest(name, topics)
        for topics in topics_of(found, lambda index, _: index, name, 0, 0)
    ]
    return [
        ("Fetch", [4, 11], [
            fetch(topics=topics) for topics in topics_of(FetchTopic, fetched, name, 1, 2)
        ]),
        ("ListOffsets", [1, 7], [
            ListOffsetsRequest(-1, topics=topics)
            for topics in topics_of(ListOffsetsTopic, listed, name, -1, -2)
        ]),
        ("OffsetForLeaderEpoch", [2], [
            OffsetForLeaderEpochRequest(-1, topics)
            for topics in topics_of(OffsetForLeaderTopic, epoch, name, 0, 5)
        ]),
        ("OffsetCommit", [2, 8], [
            request
            for topics in topics_of(OffsetCommitRequestTopic, committed, name, 1, 2)
            for request in (commit(topics), offsets[0])
        ]),
        ("OffsetFetch", [1, 5], offsets),
        ("DeleteRecords", [1, 2], [
            request
            for topics in topics_of(DeleteRecordsTopic, DeleteRecordsPartition, name, 1, 2)
            for request in (DeleteRecordsRequest(topics, 10_000), end_offsets(name, -2))
        ]),
        ("AlterReplicaLogDirs", [2], [
            AlterReplicaLogDirsRequest([
                AlterReplicaLogDir("/absent", [AlterReplicaLogDirTopic(name, [0, 0])]),
                AlterReplicaLogDir("/else", [AlterReplicaLogDirTopic(name, [0])]),
            ])
        ]),
    ]  # fmt: skip


@pytest.fixture
def coordinators(pair: Pair) -> None:
    """Both brokers coordinate groups and transactions."""
    for bootstrap in (pair.kafka, pair.ottla):
        with Transcript(bootstrap) as transcript:
            prepare(transcript)


@pytest.mark.usefixtures("coordinators")
@pytest.mark.parametrize("number", range(7))
def test_other_requests(pair: Pair, number: int) -> None:
    name = new_topic(pair)
    pair.compare(produce([TopicProduceData(name, [produce_data(0, batch(5))])]), [9])
    _, versions, asked = requests(name)[number]
    for request in asked:
        allowed = versions if len({type(each) for each in asked}) == 1 else versions[:1]
        pair.compare(request, allowed, IGNORED)


@pytest.mark.usefixtures("coordinators")
def test_add_partitions_to_txn(pair: Pair) -> None:
    name = new_topic(pair)
    found = []
    for bootstrap in (pair.kafka, pair.ottla):
        with Transcript(bootstrap) as transcript:
            producer_id, producer_epoch = init(transcript, name)
            del transcript.lines[:]
            for topics in topics_of(AddPartitionsToTxnTopic, lambda index, _: index, name, 0, 0):
                request = AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=name,
                    v3_and_below_producer_id=producer_id,
                    v3_and_below_producer_epoch=producer_epoch,
                    v3_and_below_topics=topics,
                )
                transcript.ask(request, 3)
            found.append(transcript.lines)
    assert found[1] == found[0]


def test_delete_topics(pair: Pair) -> None:
    name = new_topic(pair)
    pair.compare(DeleteTopicsRequest(topic_names=[name, name], timeout_ms=10_000), [4], IGNORED)
    pair.compare(DeleteTopicsRequest(topic_names=[name, name], timeout_ms=10_000), [4], IGNORED)
    name = new_topic(pair)
    both = [DeleteTopicState(name), DeleteTopicState(name)]
    pair.compare(DeleteTopicsRequest(topics=both, timeout_ms=10_000), [6], IGNORED)
