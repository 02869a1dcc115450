"""Describes transactions and producers."""

from __future__ import annotations

from ottla.broker.handlers.transactions.descriptions import (
    DescribeProducersHandler,
    TransactionQueryHandlers,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.storage.producer.producer_entry import ProducerEntry
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.transactions.broker import Broker
from tests.unit.broker.transactions.helpers import ID, T0


def test_describing_transactions() -> None:
    broker = Broker()
    broker.setup.ongoing(T0)
    handlers = TransactionQueryHandlers(broker.setup.queries)
    asked = Asked(handlers.describe_transactions, DescribeTransactionsRequest([ID, "unknown"]), 0)
    states = asked.response(DescribeTransactionsResponse).transaction_states
    assert [state.error_code for state in states] == [0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]
    for version in (0, 1):
        request = ListTransactionsRequest(["Ongoing"], [], -1)
        asked = Asked(handlers.list_transactions, request, version)
        (state,) = asked.response(ListTransactionsResponse).transaction_states
        assert state.transactional_id == ID


class Scene(Replicas):
    def __init__(self, producers: int) -> None:
        super().__init__()
        self.lead()
        self.handler = DescribeProducersHandler(self.manager)
        log = self.logs.get(TOPIC, 0)
        assert log is not None
        for producer_id in range(producers):
            log.producer_state.producers[producer_id] = ProducerEntry(producer_id)


def test_each_partition_has_a_row_with_its_producers() -> None:
    scene = Scene(3)
    request = DescribeProducersRequest([TopicRequest(TOPIC, [0, 7, 0])])
    asked = Asked(scene.handler.handle, request, 0).response(DescribeProducersResponse)
    found = asked.topics[0].partitions
    assert [row.partition_index for row in found] == [0, 7, 0]
    assert [row.error_code for row in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    ids = [[producer.producer_id for producer in row.active_producers] for row in found]
    assert ids == [[0, 1, 2], [], [0, 1, 2]]


def test_many_producers_are_described_in_turns() -> None:
    scene = Scene(5)
    request = DescribeProducersRequest([TopicRequest(TOPIC, [0])])
    with steps_per_turn(1):
        asked = Asked(scene.handler.handle, request, 0).response(DescribeProducersResponse)
    assert len(asked.topics[0].partitions[0].active_producers) == 5
