"""The requests of transactional producers, in every version."""

import pytest

from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.transactional_produce import RETRIES, RETRY_MS
from ottla.broker.handlers.transactions.transactions import (
    TxnOffsetCommitHandler,
    WriteTxnMarkersHandler,
)
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.broker.transactions.state import Producer
from ottla.broker.transactions.verification import TransactionVerifier
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tests.doubles.request_context import Asked
from tests.unit.broker.groups.helpers import T0, T1
from tests.unit.broker.groups.helpers import Setup as Groups
from tests.unit.broker.handlers.fake_metadata import Metadata
from tests.unit.broker.handlers.transactions.broker import Broker
from tests.unit.broker.transactions.helpers import ID
from tests.unit.broker.transactions.helpers import Setup as Transactions


@pytest.mark.parametrize("version", range(6))
def test_a_producer_starts(version: int) -> None:
    broker = Broker()
    response = broker.init(version, None)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 100, 0)
    assert broker.init(version).producer_epoch == 0
    assert broker.init(version).producer_epoch == 1


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_continues(version: int) -> None:
    broker = Broker()
    response = broker.init(version)
    producer = Producer(response.producer_id, response.producer_epoch)
    assert broker.init(version, producer=producer).producer_epoch == 1
    fenced = broker.init(version, producer=Producer(producer.producer_id, 9))
    known = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert (fenced.error_code, fenced.producer_id, fenced.producer_epoch) == (known, -1, -1)
    for half in (Producer(7, -1), Producer(-1, 7)):
        assert broker.init(version, producer=half).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4))
def test_a_client_adds_partitions(version: int) -> None:
    broker = Broker()
    producer = broker.setup.producer()
    assert broker.add(version, producer, t=[0, 1], u=[0]) == {"t": [0, 0], "u": [0]}
    unknown, untried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    response = broker.add(version, producer, t=[0, 9], nowhere=[0])
    assert response == {"t": [untried, unknown], "nowhere": [unknown]}
    fenced = Producer(producer.producer_id, 9)
    known = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.add(version, fenced, t=[0]) == {"t": [known]}
    assert broker.add(version, producer) == {}


def test_a_partition_that_is_there_twice_has_two_rows() -> None:
    broker = Broker()
    producer = broker.setup.producer()
    topics = [AddPartitionsToTxnTopic("t", [0, 0]), AddPartitionsToTxnTopic("t", [1, 0])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics,
    )
    asked = Asked(broker.add_partitions_to_txn.add_partitions_to_txn, request, 3)
    found = asked.response(AddPartitionsToTxnResponse).results_by_topic_v3_and_below
    assert [
        (topic.name, [(row.partition_index, row.partition_error_code) for row in rows])
        for topic in found
        for rows in (topic.results_by_partition,)
    ] == [("t", [(0, 0), (0, 0)]), ("t", [(1, 0), (0, 0)])]


def transaction(
    name: str, producer: Producer, topic: str, index: int, *, verify_only: bool = False
) -> AddPartitionsToTxnTransaction:
    topics = [AddPartitionsToTxnTopic(topic, [index])]
    return AddPartitionsToTxnTransaction(name, *producer, verify_only, topics)


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_adds_and_verifies_several_transactions(version: int) -> None:
    broker = Broker()
    producer = broker.setup.ongoing(T0)
    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction(ID, producer, "u", 0),
            transaction("unknown", producer, "u", 0),
            transaction("other", producer, "nowhere", 0),
        ]
    )
    asked = Asked(broker.add_partitions_to_txn.add_partitions_to_txn, request, version)
    assert codes(asked.response(AddPartitionsToTxnResponse)) == {
        ID: [ErrorCode.NONE],
        "unknown": [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
        "other": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    }
    request = AddPartitionsToTxnRequest(
        transactions=[transaction(ID, producer, "t", 1, verify_only=True)]
    )
    asked = Asked(broker.add_partitions_to_txn.add_partitions_to_txn, request, version)
    assert codes(asked.response(AddPartitionsToTxnResponse)) == {
        ID: [ErrorCode.TRANSACTION_ABORTABLE]
    }
    assert (
        Asked(
            broker.add_partitions_to_txn.add_partitions_to_txn, AddPartitionsToTxnRequest(), version
        ).response(AddPartitionsToTxnResponse)
        == AddPartitionsToTxnResponse()
    )


def codes(response: AddPartitionsToTxnResponse) -> dict[str, list[int]]:
    return {
        result.transactional_id: [
            row.partition_error_code
            for topic in result.topic_results
            for row in topic.results_by_partition
        ]
        for result in response.results_by_transaction
    }


OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)


async def unreachable(_: int, __: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    raise OSError


class CommitBroker:
    """Both coordinators in one process, and a producer with an open transaction."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.groups.log.verifies = True
        self.transactions = Transactions()
        metadata = Metadata(t=2, **{TRANSACTION_STATE_TOPIC: 1})
        self.handler = TxnOffsetCommitHandler(
            self.groups.coordinator.commits,
            TransactionVerifier(1, metadata, self.transactions.coordinator, unreachable),
            metadata,
            self.groups.coordinator.partition_for,
            self.groups.timer.clock.now_ms,
            self.groups.timer,
            GroupRequestErrorLog(self.groups.coordinator.events, self.groups.timer.clock.now_ms),
            lambda: self.transaction_version,
        )
        self.transaction_version = 2
        self.producer = self.transactions.ongoing(OFFSETS)

    def commit(
        self,
        version: int,
        *indexes: int,
        producer: Producer | None = None,
        topic: str = "t",
        member_id: str = "",
    ) -> dict[TopicPartition, int]:
        return committed(
            self.asked(version, *indexes, producer=producer, topic=topic, member_id=member_id)
        )

    def asked(
        self,
        version: int,
        *indexes: int,
        producer: Producer | None = None,
        topic: str = "t",
        member_id: str = "",
    ) -> Asked:
        rows = [TxnOffsetCommitRequestPartition(index, 5, -1, None) for index in indexes]
        request = TxnOffsetCommitRequest(
            ID,
            "g",
            *(producer or self.producer),
            generation_id=1 if member_id else -1,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(topic, rows)],
        )
        return Asked(self.handler.handle, request, version)

    def append_marker_of_kafka_3(self, producer: Producer) -> None:
        """A marker that has not raised the epoch: it may be that of this transaction."""
        marker = end_transaction_marker(
            committed=True,
            coordinator_epoch=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=0,
        )
        self.groups.log.append(0, marker, lambda *_: None)


def committed(asked: Asked) -> dict[TopicPartition, int]:
    """The error codes of the rows."""
    return {
        TopicPartition(found.name, row.partition_index): row.error_code
        for found in asked.response(TxnOffsetCommitResponse).topics
        for row in found.partitions
    }


@pytest.mark.parametrize("version", range(5))
def test_every_version_commits(version: int) -> None:
    broker = CommitBroker()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = broker.commit(version, 0, 1, 9)
    assert response == {T0: 0, T1: 0, TopicPartition("t", 9): unknown}
    assert broker.groups.offset() == -1
    broker.groups.coordinator.on_transaction_completed(
        broker.producer.producer_id, 0, committed=True
    )
    assert broker.groups.offset() == 5


def test_nothing_to_commit() -> None:
    broker = CommitBroker()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.commit(3, 0, topic="nowhere") == {TopicPartition("nowhere", 0): unknown}
    assert broker.commit(3) == {}
    assert broker.groups.log.appends == 0


@pytest.mark.parametrize("version", range(5))
def test_outside_of_a_transaction_nothing_is_committed(version: int) -> None:
    broker = CommitBroker()
    broker.transactions.end(broker.producer)
    response = broker.commit(version, 0)
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert response == {T0: expected}
    assert broker.groups.log.appends == 0


def test_a_fenced_producer_commits_nothing() -> None:
    broker = CommitBroker()
    broker.transactions.init()
    response = broker.commit(3, 0)
    assert response == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_what_was_verified_once_is_not_verified_again() -> None:
    broker = CommitBroker()
    broker.commit(3, 0)
    broker.transactions.coordinator.on_resigned(0, 1)
    assert broker.commit(3, 1) == {T1: ErrorCode.NONE}
    assert broker.commit(3, 1, producer=Producer(9, 9)) == {T1: ErrorCode.NOT_COORDINATOR}


@pytest.mark.parametrize("version", range(5))
def test_old_producers_do_not_know_of_loading(version: int) -> None:
    broker = CommitBroker()
    broker.groups.coordinator.on_elected(0, 1)
    response = broker.commit(version, 0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert response == {T0: loading if version >= 2 else ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_members_are_checked() -> None:
    broker = CommitBroker()
    (member,) = broker.groups.stable_group()
    assert broker.commit(3, 0, member_id=member) == {T0: ErrorCode.NONE}
    assert broker.commit(3, 0, member_id="x") == {T0: ErrorCode.UNKNOWN_MEMBER_ID}


@pytest.mark.parametrize("version", range(5))
def test_offsets_and_the_end(version: int) -> None:
    broker = Broker()
    producer = broker.setup.producer()
    request: Message = AddOffsetsToTxnRequest(ID, *producer, "g")
    asked = Asked(broker.add_partitions_to_txn.add_offsets_to_txn, request, version)
    assert asked.response(AddOffsetsToTxnResponse).error_code == ErrorCode.NONE
    assert broker.setup.transaction().value.partitions == {TopicPartition(GROUP_METADATA_TOPIC, 3)}
    known = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    for epoch, error in ((9, known), (0, ErrorCode.NONE)):
        request = EndTxnRequest(ID, producer.producer_id, epoch, True)
        asked = Asked(broker.end_txn.handle, request, version)
        assert asked.response(EndTxnResponse).error_code == error
    request = AddOffsetsToTxnRequest(ID, producer.producer_id, 9, "g")
    asked = Asked(broker.add_partitions_to_txn.add_offsets_to_txn, request, version)
    assert asked.response(AddOffsetsToTxnResponse).error_code == known


def test_failed_requests_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.transactions")
    broker = Broker()
    request = EndTxnRequest("unknown", 77, 3, True)
    for _ in range(3):  # logged once
        assert Asked(broker.end_txn.handle, request, 3).response(EndTxnResponse).error_code == (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
    failures = [line for line in caplog.messages if "failed" in line]
    assert failures == [
        "EndTxn request of TransactionalId 'unknown' with producer id 77 and epoch 3 (client "
        "'client' at /127.0.0.1) failed with INVALID_PRODUCER_ID_MAPPING: the transactional id is "
        "unknown, or has another producer id"
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_markers_from_other_coordinators(version: int) -> None:
    handler = WriteTxnMarkersHandler(
        MarkerWriter(
            lambda where, batch, is_raised, on_result: on_result(0), lambda *_: None, lambda: 1
        )
    )
    request = WriteTxnMarkersRequest(
        [WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("t", [0, 1])], 0)]
    )
    asked = Asked(handler.handle, request, version)
    (marker,) = asked.response(WriteTxnMarkersResponse).markers
    assert [row.error_code for topic in marker.topics for row in topic.partitions] == [0, 0]


# Transaction version 2.


def test_the_end_gives_the_next_epoch() -> None:
    broker = Broker()
    producer = broker.setup.ongoing(T0)
    request = EndTxnRequest(ID, *producer, True)
    for _ in range(2):  # the second is a retry
        asked = Asked(broker.end_txn.handle, request, 5)
        response = asked.response(EndTxnResponse)
        assert response.error_code == ErrorCode.NONE
        assert (response.producer_id, response.producer_epoch) == (
            producer.producer_id,
            producer.epoch + 1,
        )
        assert asked.context.connection.raises_epochs
    asked = Asked(broker.end_txn.handle, request, 4)
    response = asked.response(EndTxnResponse)
    assert (response.error_code, response.producer_id) == (ErrorCode.PRODUCER_FENCED, -1)
    assert not asked.context.connection.raises_epochs


@pytest.mark.parametrize("verifies", [True, False])
def test_offsets_add_their_partition(verifies: bool) -> None:
    broker = CommitBroker()
    broker.groups.log.verifies = verifies
    broker.handler._verifier.enabled = verifies
    ((_, producer),) = broker.transactions.end_and_raise(broker.producer)
    assert broker.commit(5, 0, producer=producer) == {T0: ErrorCode.NONE}
    value = broker.transactions.transaction().value
    assert (value.partitions, value.client_version) == ({OFFSETS}, 2)
    fenced = broker.commit(5, 0, producer=broker.producer)
    # Without verification it is the log that knows the epoch, which the double does not check.
    assert fenced == {T0: ErrorCode.NONE if verifies else ErrorCode.INVALID_PRODUCER_EPOCH}


def test_offsets_of_a_client_that_is_newer_than_the_cluster() -> None:
    broker = CommitBroker()
    assert broker.commit(5, 0) == {T0: ErrorCode.NONE}
    broker.transaction_version = 0
    broker.transactions.end_and_raise(broker.producer)
    assert broker.commit(5, 0) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_offsets_whose_guard_a_marker_has_ended_begin_again() -> None:
    broker = CommitBroker()
    ((_, producer),) = broker.transactions.end_and_raise(broker.producer)
    broker.transactions.log.hold = True
    asked = broker.asked(5, 0, producer=producer)
    broker.append_marker_of_kafka_3(producer)
    broker.transactions.log.hold = False
    broker.transactions.log.commit_all()
    assert asked.is_pending
    broker.groups.timer.advance(RETRY_MS)
    assert committed(asked) == {T0: ErrorCode.NONE}
    broker.groups.coordinator.on_transaction_completed(producer.producer_id, 0, committed=True)
    assert broker.groups.offset() == 5


def test_offsets_are_not_tried_for_ever() -> None:
    broker = CommitBroker()
    broker.transactions.log.hold = True
    broker.transactions.end_later(broker.producer)  # and is not completed
    asked = broker.asked(5, 0)
    for _ in range(RETRIES):
        assert asked.is_pending
        broker.groups.timer.advance(RETRY_MS)
    assert committed(asked) == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert broker.groups.log.appends == 0


def test_offsets_of_older_clients_do_not_begin_again() -> None:
    broker = CommitBroker()
    asked = broker.asked(4, 0)
    assert not asked.is_pending
    assert committed(asked) == {T0: ErrorCode.NONE}
