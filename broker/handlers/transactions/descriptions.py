"""Descriptions of transactions and producers (KIP-664).

DescribeProducers (61), version 0: the active producers of partitions led here, which are those of
the last day. DescribeTransactions (65), version 0, and ListTransactions (66), versions 0 and 1: the
transactions that this broker coordinates.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.error_map import error_code, error_message
from ottla.broker.requests.long_responses import respond_in_slices, respond_when_built
from ottla.broker.requests.request_channel import Deferred, RequestContext
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
)
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.steps import run_at_once

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.steps import Steps
    from ottla.storage.log.log import Log


# A row costs 5 us to build and encode: a response of these takes 5 ms at once.
MAX_TRANSACTIONS_AT_ONCE = 1_000


class TransactionQueryHandlers:
    """Reads from the transaction coordinator."""

    def __init__(self, queries: TransactionQueries) -> None:
        self._queries = queries

    def describe_transactions(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[
                self._queries.describe(transactional_id)
                for transactional_id in request.transactional_ids
            ]
        )

    def list_transactions(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse | Coroutine[Any, Any, Deferred]:
        steps = self._queries.list_in_steps(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
        )
        if self._queries.transaction_count > MAX_TRANSACTIONS_AT_ONCE:
            return respond_in_slices(context, steps)
        return run_at_once(steps)


_ROWS_PER_STEP = 64


class DescribeProducersHandler:
    """Reads the producer state of local logs."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse | Coroutine[Any, Any, Deferred]:
        return respond_when_built(context, self._describe(request))

    def _describe(self, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
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
    for number, entry in enumerate(list(log.producer_state.producers.values()), 1):
        if number % _ROWS_PER_STEP == 0:
            yield
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
    return found
