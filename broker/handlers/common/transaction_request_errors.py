"""Logs why the request of a transactional producer failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.handlers.common.request_error_log import RequestErrorLog, shortened
from ottla.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from ottla.broker.requests.request_channel import RequestContext

logger = logging.getLogger("ottla.transactions")

# From this version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn on clients know
# PRODUCER_FENCED.
PRODUCER_FENCED_SINCE = 2

# Errors that producers retry as part of the protocol; they are not logged.
_EXPECTED = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
)
_FENCED = "a newer producer with the same transactional id fenced it, or its transaction timed out"
_REASONS: dict[int, str] = {
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id is unknown, or has another "
    "producer id",
    ErrorCode.INVALID_TXN_STATE: "the operation is not valid in the state of the transaction",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the transaction timeout is not above 0 or exceeds "
    "transaction.max.timeout.ms",
    ErrorCode.INVALID_REQUEST: "the transactional id is empty, or a producer id has no epoch",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "a partition of the request does not exist",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorized for the transactional id",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not authorized for a topic of the request",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not authorized for the group",
}


class TransactionRequestErrorLog:
    """Handlers report every error code that they send. Loop only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._log = RequestErrorLog(logger, now_ms)

    def log(
        self,
        context: RequestContext,
        api_name: str,
        transactional_id: str | None,
        producer: tuple[int, int],
        error_code: int,
    ) -> None:
        """Logs the failed request, unless the error is part of the normal protocol."""
        if error_code in _EXPECTED:
            return
        if not self._log.is_new((transactional_id, producer, api_name, error_code)):
            return
        client_id = shortened(context.header.client_id or "")
        self._log.write(
            f"{api_name} request of TransactionalId {shortened(transactional_id or '')!r} with "
            f"producer id {producer[0]} and epoch {producer[1]} (client {client_id!r} at "
            f"/{context.client_host}) failed with {error_name(error_code)}: "
            f"{_REASONS.get(error_code, 'see the error code')}"
        )

    def logged(
        self,
        context: RequestContext,
        api_name: str,
        transactional_id: str,
        producer: tuple[int, int],
        error_code: int,
    ) -> int:
        """Logs the error; returns the code that this version of the request knows."""
        self.log(context, api_name, transactional_id, producer, error_code)
        return known_error(error_code, context.header.api_version, PRODUCER_FENCED_SINCE)


def known_error(error_code: int, version: int, fenced_since: int) -> int:
    """INVALID_PRODUCER_EPOCH for clients that do not know PRODUCER_FENCED."""
    if error_code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error_code
