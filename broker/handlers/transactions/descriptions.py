"""Descriptions of transactions and producers (KIP-664).

DescribeProducers (61), version 0: the active producers of partitions led here, which are those of
the last day. DescribeTransactions (65), version 0, and ListTransactions (66), versions 0 and 1: the
transactions that this broker coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import INDEXES, Items
from ottla.broker.transactions.queries import TransactionQueries
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.steps import Steps
    from ottla.storage.log.log import Log


class TransactionQueryHandlers:
    """Reads from the transaction coordinator."""

    def __init__(self, queries: TransactionQueries) -> None:
        self._queries = queries

    def describe_transactions(
        self, _: RequestContext, request: DescribeTransactionsRequest
    ) -> Steps[DescribeTransactionsResponse]:
        response = DescribeTransactionsResponse()
        for transactional_id in request.transactional_ids:
            response.transaction_states.append(self._queries.describe(transactional_id))
            yield
        return response

    def list_transactions(
        self, _: RequestContext, request: ListTransactionsRequest
    ) -> Steps[ListTransactionsResponse]:
        return self._queries.list_transactions(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
        )


class DescribeProducersHandler:
    """Reads the producer state of local logs."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(
        self, _: RequestContext, request: DescribeProducersRequest
    ) -> Steps[DescribeProducersResponse]:
        response = DescribeProducersResponse()
        for topic in request.topics:
            # One row for an index that is requested again and again: it may have many producers.
            rows: dict[int, PartitionResponse] = {}
            for index in topic.partition_indexes:
                if index not in rows:
                    rows[index] = yield from self._partition(topic.name, index)
            found = [rows[index] for index in topic.partition_indexes]
            response.topics.append(TopicResponse(topic.name, found))
        return response

    def _partition(self, topic: str, index: int) -> Steps[PartitionResponse]:
        row = PartitionResponse(index)
        try:
            log = self._replica_manager.partition(topic, index).leader_log()
            row.active_producers = yield from _producers(log)
        except Exception as error:
            row.error_code = error_code(error)
            row.error_message = error_message(error)
        return row


def _producers(log: Log) -> Steps[list[ProducerState]]:
    found = []
    for entry in list(log.producer_state.producers.values()):
        found.append(
            ProducerState(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        yield
    return found


def _describe_producers_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [PartitionResponse(index, code, message) for index in topic.partition_indexes]
        response.topics.append(TopicResponse(topic.name, rows))


def _describe_transactions_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    for each in request.transactional_ids:
        response.transaction_states.append(TransactionState(code, each))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_PRODUCERS,
        DescribeProducersHandler.handle,
        check="describe_producers",
        errors=_describe_producers_errors,
        items=(INDEXES,),
    ),
    ApiRoute(
        ApiKey.DESCRIBE_TRANSACTIONS,
        TransactionQueryHandlers.describe_transactions,
        check="describe_transactions",
        errors=_describe_transactions_errors,
        items=(Items("transactional_ids", "transaction_states"),),
    ),
    ApiRoute(
        ApiKey.LIST_TRANSACTIONS,
        TransactionQueryHandlers.list_transactions,
        check="list_transactions",
    ),
)
