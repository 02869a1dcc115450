"""AddPartitionsToTxn and AddOffsetsToTxn in every version."""

import pytest

from ottla.broker.transactions.state import Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.transactions.broker import Broker
from tests.unit.broker.transactions.helpers import ID, T0


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
