"""DescribeTransactions and ListTransactions in every version."""

from ottla.broker.handlers.transactions.describe_transactions import TransactionQueryHandlers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
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
