"""EndTxn (26), versions 0 to 4: commits or aborts the transaction of a producer."""

from ottla.broker.handlers.common.transaction_request_errors import TransactionRequestErrorLog
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.state import Producer
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.registry import ApiKey


class EndTxnHandler:
    """Hands the request to the transaction coordinator."""

    def __init__(
        self, coordinator: TransactionCoordinator, request_errors: TransactionRequestErrorLog
    ) -> None:
        self._coordinator = coordinator
        self._request_errors = request_errors

    def handle(self, context: RequestContext, request: EndTxnRequest) -> Deferred:
        producer = Producer(request.producer_id, request.producer_epoch)

        def send_response(error: int) -> None:
            code = self._request_errors.logged(
                context, "EndTxn", request.transactional_id, producer, error
            )
            context.respond(EndTxnResponse(error_code=code))

        self._coordinator.end_transaction(
            request.transactional_id, producer, request.committed, send_response
        )
        return DEFERRED


ROUTES = (ApiRoute(ApiKey.END_TXN, EndTxnHandler.handle, check="end_txn"),)
