"""InitProducerId (22), versions 0 to 5: producer ids and epochs of idempotent producers.

Version 3 and later may name the current producer id and epoch, to bump the epoch (KIP-360).
"""

from typing import Any

from ottla.broker.handlers.common.transaction_request_errors import (
    TransactionRequestErrorLog,
    known_error,
)
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.registry import ApiKey

PRODUCER_FENCED_SINCE = 4


class InitProducerIdHandler:
    """Hands the request to the transaction coordinator."""

    def __init__(
        self, coordinator: TransactionCoordinator, request_errors: TransactionRequestErrorLog
    ) -> None:
        self._coordinator = coordinator
        self._request_errors = request_errors

    def handle(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> Deferred | InitProducerIdResponse:
        version = context.header.api_version
        expected: Producer | None = Producer(request.producer_id, request.producer_epoch)
        if expected == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
            expected = None
        elif request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_PRODUCER_EPOCH:
            return InitProducerIdResponse(
                error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_PRODUCER_EPOCH
            )

        def send_response(error: int, producer: Producer) -> None:
            if error:
                self._request_errors.log(
                    *(context, "InitProducerId", request.transactional_id),
                    *(expected or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH), error),
                )
            context.respond(
                InitProducerIdResponse(
                    error_code=known_error(error, version, PRODUCER_FENCED_SINCE),
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                )
            )

        self._coordinator.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected, send_response
        )
        return DEFERRED


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    response.producer_id = response.producer_epoch = -1


ROUTES = (
    ApiRoute(
        ApiKey.INIT_PRODUCER_ID,
        InitProducerIdHandler.handle,
        check="init_producer_id",
        errors=_error_rows,
    ),
)
