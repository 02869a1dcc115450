"""Writing markers here, and reaching other brokers."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from ottla.broker.cluster.metadata_cache import (
    BrokerMetadata,
    MetadataSnapshot,
    PartitionMetadata,
    TopicMetadata,
)
from ottla.broker.runtime.tasks import running_tasks, stop
from ottla.broker.transactions.marker_writer import BrokerMarkerTransport, MarkerWriter
from ottla.broker.transactions.markers import NO_LEADER
from ottla.controller.tree.store import StoreError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.control import read_end_transaction_marker
from ottla.protocol.records.reader import read_batch
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition
from tests.unit.broker.transactions.helpers import T0, T1, U0

OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 3)


class Partitions:
    """The append function of the writer: records appends, and completes them on request."""

    def __init__(self) -> None:
        self.appended: dict[TopicPartition, bytes] = {}
        self.raised: dict[TopicPartition, bool] = {}
        self.pending: list[tuple[TopicPartition, Callable[[int], None]]] = []
        self.completed: list[tuple[int, int, bool]] = []
        self.writer = MarkerWriter(
            self.append, lambda *arguments: self.completed.append(arguments), lambda: 1_234
        )

    def append(
        self,
        partition: TopicPartition,
        batch: bytes,
        is_raised: bool,
        on_result: Callable[[int], None],
    ) -> None:
        self.appended[partition] = batch
        self.raised[partition] = is_raised
        self.pending.append((partition, on_result))

    def response(self, errors: dict[TopicPartition, int] | None = None) -> None:
        for partition, on_result in self.pending:
            on_result((errors or {}).get(partition, 0))
        self.pending.clear()


def request(*partitions: TopicPartition, committed: bool = True) -> WriteTxnMarkersRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    found = [WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()]
    return WriteTxnMarkersRequest([WritableTxnMarker(7, 2, committed, found, 9)])


def errors_of(response: WriteTxnMarkersResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for marker in response.markers
        for topic in marker.topics
        for row in topic.partitions
    }


def test_an_unforeseen_error_of_the_offsets_does_not_withhold_the_response() -> None:
    """The coordinator sends the next markers to a broker after the response to the last ones."""

    def fail(*arguments: object) -> None:
        raise KeyError("a defect")

    partitions = Partitions()
    writer = MarkerWriter(partitions.append, fail, lambda: 1_234)
    responses: list[WriteTxnMarkersResponse] = []
    run_at_once(writer.write(request(OFFSETS, T0), responses.append))
    partitions.response()
    (response,) = responses
    assert errors_of(response) == {OFFSETS: 0, T0: 0}


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_control_batch(committed: bool) -> None:
    partitions = Partitions()
    run_at_once(partitions.writer.write(request(T0, committed=committed), lambda _: None))
    batch = partitions.appended[T0]
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert header.is_control
    assert header.is_transactional
    assert header.max_timestamp == 1_234
    (record,) = read_batch(batch)
    marker = read_end_transaction_marker(record)
    assert (marker.type, marker.coordinator_epoch) == (int(committed), 9)


def test_the_response_is_sent_with_the_last_marker() -> None:
    partitions = Partitions()
    responses: list[WriteTxnMarkersResponse] = []
    run_at_once(partitions.writer.write(request(T0, T1), responses.append))
    _, first = partitions.pending.pop(0)
    first(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not responses
    partitions.response()
    assert errors_of(responses[0]) == {T0: ErrorCode.NOT_LEADER_OR_FOLLOWER, T1: ErrorCode.NONE}


def test_no_markers_are_an_empty_response() -> None:
    responses: list[WriteTxnMarkersResponse] = []
    run_at_once(Partitions().writer.write(WriteTxnMarkersRequest([]), responses.append))
    assert responses == [WriteTxnMarkersResponse([])]


def test_the_group_coordinator_hears_of_markers_that_are_committed() -> None:
    partitions = Partitions()
    run_at_once(partitions.writer.write(request(T0, OFFSETS), lambda _: None))
    assert not partitions.completed
    partitions.response()
    assert partitions.completed == [(7, 3, True)]
    run_at_once(partitions.writer.write(request(OFFSETS, committed=False), lambda _: None))
    partitions.response({OFFSETS: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    assert len(partitions.completed) == 1


# The transport.


class Metadata:
    def __init__(self, leaders: dict[TopicPartition, int]) -> None:
        topics: dict[str, TopicMetadata] = {}
        for (topic, index), leader in leaders.items():
            known = topics.setdefault(topic, TopicMetadata(topic, bytes(16), {}))
            known.partitions[index] = PartitionMetadata(index, leader, 0, [], [], [], 0, 0)
        brokers = {number: BrokerMetadata(number, {}, None) for number in (1, 2)}
        self.snapshot = MetadataSnapshot(brokers, topics, {}, (1, 1))


async def nothing_exists(topic: str) -> frozenset[int]:
    return frozenset()


async def unreachable(broker_id: int, _: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    raise OSError(f"broker {broker_id} is down")


def test_leaders_are_those_of_the_metadata_and_alive() -> None:
    metadata = Metadata({T0: 2, T1: 3})
    transport = BrokerMarkerTransport(1, metadata, Partitions().writer, unreachable, nothing_exists)
    assert transport.leader_of(T0) == 2
    assert transport.leader_of(T1) == NO_LEADER
    assert transport.leader_of(OFFSETS) is None


def test_markers_for_this_broker_are_a_call() -> None:
    partitions = Partitions()
    transport = BrokerMarkerTransport(
        1, Metadata({}), partitions.writer, unreachable, nothing_exists
    )
    responses: list[WriteTxnMarkersResponse | None] = []
    transport.send(1, request(T0), responses.append)
    partitions.response()
    assert responses[0] is not None
    assert errors_of(responses[0]) == {T0: 0}


async def test_markers_for_other_brokers_go_over_the_network() -> None:
    response = WriteTxnMarkersResponse([])

    async def reachable(broker_id: int, _: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        assert broker_id == 2
        return response

    responses: list[WriteTxnMarkersResponse | None] = []
    for send in (reachable, unreachable):
        transport = BrokerMarkerTransport(
            1, Metadata({}), Partitions().writer, send, nothing_exists
        )
        transport.send(2, request(T0), responses.append)
        for task in running_tasks():
            await task
    assert responses == [response, None]


async def test_a_partition_that_the_metadata_does_not_have_is_looked_up() -> None:
    reads: list[str] = []

    async def existing(topic: str) -> frozenset[int]:
        reads.append(topic)
        await asyncio.sleep(0)
        if topic == "u":
            raise StoreError("/brokers/topics/u")
        return frozenset({0})

    transport = BrokerMarkerTransport(1, Metadata({}), Partitions().writer, unreachable, existing)
    deleted: dict[TopicPartition, bool] = {}
    for partition in (T0, T1, U0):
        transport.check_deleted(partition, partial(deleted.__setitem__, partition))
    for task in running_tasks():
        await task
    assert deleted == {T0: False, T1: True, U0: False}
    assert sorted(reads) == ["t", "u"]


async def test_a_check_during_a_read_gets_a_read_of_its_own() -> None:
    topics = {"t": frozenset[int]()}
    started, go_on = asyncio.Event(), asyncio.Event()

    async def existing(topic: str) -> frozenset[int]:
        found = topics[topic]
        started.set()
        await go_on.wait()
        return found

    transport = BrokerMarkerTransport(1, Metadata({}), Partitions().writer, unreachable, existing)
    deleted: list[bool] = []
    transport.check_deleted(T0, deleted.append)
    await started.wait()
    topics["t"] = frozenset({0})  # the topic is created again
    transport.check_deleted(T0, deleted.append)
    go_on.set()
    for task in running_tasks():
        await task
    assert deleted == [True, False]


async def test_a_cancelled_read_reports_nothing_of_the_partition() -> None:
    async def existing(topic: str) -> frozenset[int]:
        await asyncio.Event().wait()
        return frozenset()

    transport = BrokerMarkerTransport(1, Metadata({}), Partitions().writer, unreachable, existing)
    deleted: list[bool] = []
    transport.check_deleted(T0, deleted.append)
    await asyncio.sleep(0)
    await stop(*running_tasks())
    assert deleted == [False]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_transaction_version_says_how_a_marker_is_checked(version: int) -> None:
    partitions = Partitions()
    asked = request(T0)
    asked.markers[0].transaction_version = version
    run_at_once(partitions.writer.write(asked, lambda _: None))
    assert partitions.raised == {T0: version == 2}
