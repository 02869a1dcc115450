from __future__ import annotations

import asyncio

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.scene import DataPath

NEWEST = 11
BATCH = build_batch([(1_000, b"k", b"v", [])])


def request(
    *records: bytes | None,
    acks: int = 1,
    topic: str = TOPIC,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One partition for each of `records`."""
    data = [
        PartitionProduceData(index, None if each is None else bytearray(each))
        for index, each in enumerate(records)
    ]
    return ProduceRequest(transactional_id, acks, 1_000, [TopicProduceData(topic, data)])


def rows(asked: Asked) -> list[PartitionProduceResponse]:
    response = asked.response(ProduceResponse)
    return [row for topic in response.responses for row in topic.partition_responses]


def ask(path: DataPath, asked: ProduceRequest, version: int = NEWEST) -> Asked:
    return Asked(path.produce.handle, asked, version)


@pytest.mark.parametrize("version", range(3, NEWEST + 1))
def test_a_batch_in_every_version(version: int) -> None:
    path = DataPath()
    path.lead()
    (row,) = rows(ask(path, request(BATCH), version))
    assert (row.error_code, row.base_offset, row.log_append_time_ms) == (0, 0, -1)


@pytest.mark.parametrize("transactional_id", [None, "x"])
@pytest.mark.parametrize("acks", [0, 1])
async def test_many_partitions_are_handled_in_turns(
    transactional_id: str | None, acks: int
) -> None:
    producer = {} if transactional_id is None else {"producer_id": 7, "transactional": True}
    batch = build_batch([(1_000, b"k", b"v", [])], base_sequence=0, producer_epoch=0, **producer)
    path = DataPath()
    for index in (0, 2, 3):
        path.lead(index)
    with steps_per_turn(1):
        asked = ask(
            path,
            request(batch, batch, None, batch, acks=acks, transactional_id=transactional_id),
        )
        for _ in range(10):
            await asyncio.sleep(0)
    assert [path.log(index).log_end_offset for index in (0, 2, 3)] == [1, 0, 1]
    if acks:
        missing, invalid = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_RECORD
        assert [row.error_code for row in rows(asked)] == [0, missing, invalid, 0]
    else:
        assert asked.context.closed_because


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1)])
def test_message_sets_of_old_producers_are_converted(version: int, magic: int) -> None:
    path = DataPath()
    path.lead()
    timestamp = 5 if magic else -1
    old = build_message_set([Record(0, timestamp, 0, b"k", b"v", [])], magic=magic)
    (row,) = rows(ask(path, request(old), version))
    assert row.error_code == 0
    stored = b"".join(path.log().batches(0))
    assert stored[16] == 2
    assert [record.value for record in read_records(stored)] == [b"v"]
    statistics = path.manager.context.topics.get(TOPIC)
    assert (statistics.produce_conversions, statistics.received_messages) == (1, 1)
    ask(path, request(BATCH), NEWEST)
    assert statistics.produce_conversions == 1


@pytest.mark.parametrize(
    ("records", "version", "code"),
    [
        (None, NEWEST, ErrorCode.INVALID_RECORD),
        (b"", NEWEST, ErrorCode.INVALID_RECORD),
        (b"short", NEWEST, ErrorCode.INVALID_RECORD),
        (BATCH + BATCH, NEWEST, ErrorCode.INVALID_RECORD),
        (BATCH[:16] + b"\x01" + BATCH[17:], NEWEST, ErrorCode.INVALID_RECORD),
        (BATCH[:16] + b"\x03" + BATCH[17:], NEWEST, ErrorCode.CORRUPT_MESSAGE),
        (BATCH[:-1] + b"\xff", NEWEST, ErrorCode.CORRUPT_MESSAGE),
        (bytes(17), NEWEST, ErrorCode.CORRUPT_MESSAGE),
        (BATCH[:8] + b"\xff\xff\xff\xff" + BATCH[12:], NEWEST, ErrorCode.CORRUPT_MESSAGE),
        (BATCH[:-1], NEWEST, ErrorCode.INVALID_RECORD),
        (BATCH + BATCH[:16] + b"\x07" * 9, NEWEST, ErrorCode.CORRUPT_MESSAGE),
        (BATCH + bytes(30), NEWEST, ErrorCode.CORRUPT_MESSAGE),
        (
            build_batch([(0, b"k", b"v" * 50, [])], codec=4),
            6,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ),
    ],
    ids=[
        *("null", "empty", "short", "two batches", "magic 1", "magic 3", "damaged"),
        *("length 0", "length -1", "cut", "magic 7 after it", "zeros after it", "zstd"),
    ],
)
def test_records_that_are_not_right(records: bytes | None, version: int, code: int) -> None:
    path = DataPath()
    path.lead()
    (row,) = rows(ask(path, request(records), version))
    assert row.error_code == code
    assert path.log().log_end_offset == 0


@pytest.mark.parametrize("version", [2, 3, NEWEST])
@pytest.mark.parametrize("size", [1, 11, 12, 16, 17, 40, 61, -1])
def test_a_batch_that_is_cut_off_behind_a_whole_one_is_ignored(version: int, size: int) -> None:
    path = DataPath()
    path.lead()
    (row,) = rows(ask(path, request(BATCH + BATCH[:size]), version))
    assert (row.error_code, row.base_offset) == (0, 0)
    assert path.log().local.size_in_bytes == len(BATCH)


@pytest.mark.parametrize("version", [2, 3, NEWEST])
def test_a_transactional_batch_without_a_transactional_id_is_refused(version: int) -> None:
    """No coordinator would end its transaction; readers of committed records would wait."""
    path = DataPath()
    path.lead()
    batch = build_batch(
        [(1_000, b"k", b"v", [])],
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    with pytest.raises(KafkaError) as found:
        ask(path, request(BATCH, batch), version)
    assert found.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert path.log().log_end_offset == 0


def test_the_response_has_the_order_of_the_request() -> None:
    path = DataPath()
    path.lead(0)
    path.lead(2)
    responded = rows(ask(path, request(BATCH, BATCH, None)))
    assert [(row.index, row.error_code) for row in responded] == [
        (0, 0),
        (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, ErrorCode.INVALID_RECORD),
    ]


def test_of_a_partition_that_is_there_twice_the_last_records_are_appended() -> None:
    """As Kafka, which keeps them in a map, has one row for it, and none for an empty topic."""
    path = DataPath()
    path.lead()
    one, two = BATCH, build_batch([(1, b"k", b"v", []), (2, b"k", b"w", [])])
    found = []
    for first, second in ((one, two), (two, b"junk"), (b"junk", two)):
        twice = request(first, topic=TOPIC).topic_data + request(second, topic=TOPIC).topic_data
        empty = TopicProduceData("empty", [])
        response = ask(path, ProduceRequest(None, 1, 1_000, [*twice, empty])).response(
            ProduceResponse
        )
        ((row,),) = [topic.partition_responses for topic in response.responses]
        found.append((row.error_code, row.base_offset, path.log().log_end_offset))
    assert found == [
        (0, 0, 2),
        (ErrorCode.INVALID_RECORD, -1, 4),
        (ErrorCode.INVALID_RECORD, -1, 6),
    ]


def test_acks_that_do_not_exist() -> None:
    path = DataPath()
    path.lead()
    (row,) = rows(ask(path, request(BATCH, acks=2)))
    assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_internal_topics_are_not_for_clients() -> None:
    path = DataPath()
    (row,) = rows(ask(path, request(BATCH, topic="__consumer_offsets")))
    assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_acks_0_returns_nothing() -> None:
    path = DataPath()
    path.lead()
    asked = ask(path, request(BATCH, acks=0))
    assert asked.context.responses == [None]
    assert path.log().log_end_offset == 1


def test_acks_0_with_an_error_closes_the_connection() -> None:
    asked = ask(DataPath(), request(BATCH, acks=0))
    assert asked.is_pending
    assert "UNKNOWN_TOPIC_OR_PARTITION" in (asked.context.closed_because or "")


def test_acks_all_waits_for_the_followers() -> None:
    path = DataPath()
    path.lead(replicas=[1, 2])
    asked = ask(path, request(BATCH, acks=-1))
    assert asked.is_pending
    path.timer.advance(1_000)
    (row,) = rows(asked)
    assert row.error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("version", [9, 10, NEWEST])
def test_the_leader_is_named_from_version_10(version: int) -> None:
    path = DataPath()
    path.publish(leader=2, epoch=7)
    asked = ask(path, request(BATCH), version)
    (row,) = rows(asked)
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    response = asked.response(ProduceResponse)
    if version < 10:
        assert response.node_endpoints == []
        return
    assert row.current_leader is not None
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 7)
    assert [(node.node_id, node.port) for node in response.node_endpoints] == [(2, 9092)]


def test_over_its_quota_a_client_is_silenced() -> None:
    path = DataPath()
    path.lead()
    path.quotas.apply("clients/client", {"producer_byte_rate": "1"})
    asked = ask(path, request(BATCH))
    assert asked.context.throttle_time_ms > 0
    assert rows(asked)[0].error_code == 0, "what was sent is taken"


def transactional(base_sequence: int = 0, producer_id: int = 7, epoch: int = 0) -> bytes:
    return build_batch(
        [(0, b"k", b"v", [])],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
        transactional=True,
    )


def test_a_transaction_is_verified_once_for_each_partition() -> None:
    path = DataPath()
    path.lead()
    for number in range(2):
        (row,) = rows(ask(path, request(transactional(number), transactional_id="x")))
        assert row.error_code == 0
    assert path.verifier.asked == [frozenset({TopicPartition(TOPIC, 0)})]


@pytest.mark.parametrize("other", [{"producer_id": 8}, {"epoch": 1}])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_request_has_one_transactional_producer(other: dict[str, int], is_open: bool) -> None:
    """The other one would begin a transaction without being verified, and nothing would end it."""
    path = DataPath()
    for index in range(2):
        path.lead(index)
    sequence = int(is_open)
    if is_open:
        ask(path, request(transactional(), transactional_id="x"))
    both = request(transactional(sequence), transactional(**other), transactional_id="x")
    with pytest.raises(KafkaError) as found:
        ask(path, both)
    assert found.value.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert [path.log(index).log_end_offset for index in range(2)] == [sequence, 0]


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_cannot_be_verified_is_not_written(response: int, code: int) -> None:
    path = DataPath()
    path.lead()
    path.verifier.errors = {TopicPartition(TOPIC, 0): response}
    (row,) = rows(ask(path, request(transactional(), transactional_id="x"), 11))
    assert row.error_code == code
    assert path.log().log_end_offset == 0


# Transaction version 2: from version 12 on a request adds its partitions.

ADDS = 12


@pytest.mark.parametrize("version", [11, ADDS])
def test_from_version_12_on_partitions_are_added(version: int) -> None:
    path = DataPath()
    path.lead()
    asked = ask(path, request(transactional(), transactional_id="x"), version)
    (row,) = rows(asked)
    assert row.error_code == 0
    assert path.verifier.adds == (version == ADDS)
    # It reconnects when transaction version 2 is off, and learns that.
    assert asked.context.connection.raises_epochs == (version == ADDS)


@pytest.mark.parametrize("level", [0, 2])
def test_where_it_is_not_finalized_an_open_transaction_is_asked_for(level: int) -> None:
    """It may be the last one, whose epoch a coordinator of Kafka 3 has not raised."""
    path = DataPath()
    path.lead()
    path.transaction_version = level
    for number in range(2):
        (row,) = rows(ask(path, request(transactional(number), transactional_id="x"), ADDS))
        assert row.error_code == 0
    assert len(path.verifier.asked) == (1 if level == 2 else 2)


def test_the_next_transaction_does_not_join_an_open_one() -> None:
    path = DataPath()
    path.lead()
    ask(path, request(transactional(), transactional_id="x"), ADDS)
    path.verifier.errors = {TopicPartition(TOPIC, 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    (row,) = rows(ask(path, request(transactional(epoch=1), transactional_id="x"), ADDS))
    assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(path.verifier.asked) == 2
    assert path.log().log_end_offset == 1


@pytest.mark.parametrize("is_completed", [False, True])
def test_while_the_last_transaction_is_completed_the_request_waits(is_completed: bool) -> None:
    path = DataPath()
    path.lead()
    concurrent = {TopicPartition(TOPIC, 0): ErrorCode.CONCURRENT_TRANSACTIONS}
    path.verifier.errors = concurrent
    asked = ask(path, request(transactional(), transactional_id="x"), ADDS)
    path.timer.advance(60)
    assert asked.context.responses == []
    if is_completed:
        path.verifier.errors = {}
    path.timer.advance(60)
    (row,) = rows(asked)
    assert row.error_code == (0 if is_completed else ErrorCode.CONCURRENT_TRANSACTIONS)
    assert path.log().log_end_offset == int(is_completed)
    assert len(path.verifier.asked) == (5 if is_completed else 6)


def test_a_marker_that_comes_while_the_coordinator_is_asked() -> None:
    """Of a coordinator of Kafka 3, with the same epoch: it asks again."""
    path = DataPath()
    path.lead()
    path.log().verifications.enabled = True
    verify = path.verifier.verify

    def verify_late(*arguments: object, **named: object) -> None:
        if len(path.verifier.asked) == 0:
            path.log().verifications.end(7)
        verify(*arguments, **named)  # type: ignore[arg-type]  # passed on

    path.verifier.verify = verify_late  # type: ignore[method-assign]
    asked = ask(path, request(transactional(), transactional_id="x"), ADDS)
    path.timer.advance(60)
    (row,) = rows(asked)
    assert row.error_code == 0
    assert len(path.verifier.asked) == 2
