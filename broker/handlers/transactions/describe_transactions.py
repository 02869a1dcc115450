"""DescribeTransactions (65), version 0, and ListTransactions (66), versions 0 and 1 (KIP-664)."""

from collections.abc import Coroutine
from typing import Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.long_responses import respond_in_slices
from ottla.broker.requests.request_channel import Deferred, RequestContext
from ottla.broker.requests.request_parts import Items
from ottla.broker.transactions.queries import TransactionQueries
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
from ottla.protocol.steps import run_at_once

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


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for each in request.transactional_ids:
        response.transaction_states.append(TransactionState(code, each))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_TRANSACTIONS,
        TransactionQueryHandlers.describe_transactions,
        check="describe_transactions",
        errors=_error_rows,
        items=(Items("transactional_ids", "transaction_states"),),
    ),
    ApiRoute(
        ApiKey.LIST_TRANSACTIONS,
        TransactionQueryHandlers.list_transactions,
        check="list_transactions",
    ),
)
