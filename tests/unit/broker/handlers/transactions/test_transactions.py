"""The transaction requests as their versions have them."""

import pytest

from ottla.broker.coordination.ports import GROUP_METADATA_TOPIC
from ottla.broker.handlers.transactions.refusals import TransactionRefusals
from ottla.broker.handlers.transactions.transactions import TransactionHandlers
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.broker.transactions.state import Producer
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
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.fake_metadata import Metadata
from tests.unit.broker.transactions.helpers import ID, T0, TIMEOUT_MS, Setup


class Broker:
    def __init__(self) -> None:
        self.setup = Setup()
        self.handlers = TransactionHandlers(
            self.setup.coordinator,
            MarkerWriter(lambda where, batch, reply: reply(0), lambda *_: None, lambda: 1),
            self.setup.queries,
            Metadata(t=2, u=1),
            lambda group_id: 3,
            TransactionRefusals(self.setup.timer.clock.now_ms),
        )

    def init(
        self, version: int, transactional_id: str | None = ID, producer: Producer | None = None
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id, TIMEOUT_MS, *(producer or (-1, -1)))
        asked = Asked(self.handlers.init_producer_id, request, version)
        return asked.response(InitProducerIdResponse)

    def add(self, version: int, producer: Producer, **topics: list[int]) -> dict[str, list[int]]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name, found) for name, found in topics.items()
            ],
        )
        asked = Asked(self.handlers.add_partitions_to_txn, request, version)
        return {
            topic.name: [row.partition_error_code for row in topic.results_by_partition]
            for topic in asked.response(AddPartitionsToTxnResponse).results_by_topic_v3_and_below
        }


@pytest.mark.parametrize("version", range(6))
def test_a_producer_starts(version: int) -> None:
    broker = Broker()
    response = broker.init(version, None)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 100, 0)
    assert broker.init(version).producer_epoch == 0
    assert broker.init(version).producer_epoch == 1


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_goes_on(version: int) -> None:
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
    asked = Asked(broker.handlers.add_partitions_to_txn, request, version)
    assert codes(asked.response(AddPartitionsToTxnResponse)) == {
        ID: [ErrorCode.NONE],
        "unknown": [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
        "other": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    }
    request = AddPartitionsToTxnRequest(
        transactions=[transaction(ID, producer, "t", 1, verify_only=True)]
    )
    asked = Asked(broker.handlers.add_partitions_to_txn, request, version)
    assert codes(asked.response(AddPartitionsToTxnResponse)) == {
        ID: [ErrorCode.TRANSACTION_ABORTABLE]
    }
    assert (
        Asked(broker.handlers.add_partitions_to_txn, AddPartitionsToTxnRequest(), version).response(
            AddPartitionsToTxnResponse
        )
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


@pytest.mark.parametrize("version", range(5))
def test_offsets_and_the_end(version: int) -> None:
    broker = Broker()
    producer = broker.setup.producer()
    request: Message = AddOffsetsToTxnRequest(ID, *producer, "g")
    asked = Asked(broker.handlers.add_offsets_to_txn, request, version)
    assert asked.response(AddOffsetsToTxnResponse).error_code == ErrorCode.NONE
    assert broker.setup.transaction().value.partitions == {TopicPartition(GROUP_METADATA_TOPIC, 3)}
    known = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    for epoch, error in ((9, known), (0, ErrorCode.NONE)):
        request = EndTxnRequest(ID, producer.producer_id, epoch, True)
        asked = Asked(broker.handlers.end_txn, request, version)
        assert asked.response(EndTxnResponse).error_code == error
    request = AddOffsetsToTxnRequest(ID, producer.producer_id, 9, "g")
    asked = Asked(broker.handlers.add_offsets_to_txn, request, version)
    assert asked.response(AddOffsetsToTxnResponse).error_code == known


@pytest.mark.parametrize("version", [0, 1])
def test_markers_from_other_coordinators(version: int) -> None:
    broker = Broker()
    request = WriteTxnMarkersRequest(
        [WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("t", [0, 1])], 0)]
    )
    asked = Asked(broker.handlers.write_txn_markers, request, version)
    (marker,) = asked.response(WriteTxnMarkersResponse).markers
    assert [row.error_code for topic in marker.topics for row in topic.partitions] == [0, 0]


def test_looking_at_transactions() -> None:
    broker = Broker()
    broker.setup.ongoing(T0)
    asked = Asked(
        broker.handlers.describe_transactions, DescribeTransactionsRequest([ID, "unknown"]), 0
    )
    states = asked.response(DescribeTransactionsResponse).transaction_states
    assert [state.error_code for state in states] == [0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]
    for version in (0, 1):
        request = ListTransactionsRequest(["Ongoing"], [], -1)
        asked = Asked(broker.handlers.list_transactions, request, version)
        (state,) = asked.response(ListTransactionsResponse).transaction_states
        assert state.transactional_id == ID


def test_refusals_are_told_in_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.transactions")
    broker = Broker()
    request = EndTxnRequest("unknown", 77, 3, True)
    for _ in range(3):  # told once
        assert Asked(broker.handlers.end_txn, request, 3).response(EndTxnResponse).error_code == (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
    told = [line for line in caplog.messages if "refused" in line]
    assert told == [
        "transactional id 'unknown': EndTxn of producer 77 with epoch 3 (client 'client' at "
        "/127.0.0.1) refused with INVALID_PRODUCER_ID_MAPPING: the transactional id is unknown, or "
        "has another producer id"
    ]
