"""Says in words in the log why a transactional producer's request was refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.handlers.refusal_log import RefusalLog, shortened
from ottla.protocol.errors import ErrorCode, error_name

if TYPE_CHECKING:
    from ottla.broker.requests.request_channel import RequestContext

logger = logging.getLogger("ottla.transactions")

# What a producer does about these is part of the protocol: nothing went wrong.
_ORDINARY = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
)
_FENCED = "a newer producer with this transactional id has taken over, or its time was up"
_WORDS: dict[int, str] = {
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id is unknown, or has another "
    "producer id",
    ErrorCode.INVALID_TXN_STATE: "that cannot be done in the state that the transaction is in",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "its timeout is not above 0 and at most "
    "transaction.max.timeout.ms",
    ErrorCode.INVALID_REQUEST: "the transactional id is empty, or a producer id lacks its epoch",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it names a partition that does not exist",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "it has no right to this transactional id",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "it has no right to one of the topics",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "it has no right to the group",
}


class TransactionRefusals:
    """Told by the handlers of every answer that is an error. Loop only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._log = RefusalLog(logger, now_ms)

    def tell(
        self,
        context: RequestContext,
        request: str,
        transactional_id: str | None,
        producer: tuple[int, int],
        error_code: int,
    ) -> None:
        """`request` is Kafka's name of the API; nothing happens for codes that are no refusal."""
        if error_code in _ORDINARY:
            return
        if not self._log.is_new((transactional_id, producer, request, error_code)):
            return
        client_id = shortened(context.header.client_id or "")
        self._log.write(
            f"transactional id {shortened(transactional_id or '')!r}: {request} of producer "
            f"{producer[0]} with epoch {producer[1]} (client {client_id!r} at "
            f"/{context.client_host}) refused with {error_name(error_code)}: "
            f"{_WORDS.get(error_code, 'see the error code')}"
        )
