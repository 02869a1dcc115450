"""DescribeTransactions (65), version 0, and ListTransactions (66), versions 0 and 1 (KIP-664)."""

from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.transactions.queries import TransactionQueries
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)


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
    ) -> ListTransactionsResponse:
        return self._queries.list_transactions(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
        )
