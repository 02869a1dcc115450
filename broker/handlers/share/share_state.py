"""Requests of other brokers to a share coordinator (KIP-932): InitializeShareGroupState (83),
ReadShareGroupState (84), WriteShareGroupState (85), DeleteShareGroupState (86), all version 0, the
third version 1 too, and ReadShareGroupStateSummary (87), versions 0 and 1.

They need CLUSTER_ACTION on the cluster. Each partition has an error of its own: NOT_COORDINATOR if
another broker leads its partition of `__share_group_state`, INVALID_REQUEST for one without state.
A change is durable when the response is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_context import ErrorRows, OnCluster
from ottla.broker.runtime.tasks import gather_limited, spawn
from ottla.broker.share.coordinator.state_requests import batch_of
from ottla.broker.share.persister import SharePartitionKey, StateUpdate
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import delete_share_group_state as deleting
from ottla.protocol.messages import initialize_share_group_state as initializing
from ottla.protocol.messages import read_share_group_state as reading
from ottla.protocol.messages import read_share_group_state_summary as summarizing
from ottla.protocol.messages import write_share_group_state as writing
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.share.persister import ShareStatePersister

# Partitions whose records are appended at the same time: they wait for the same replicas.
_AT_ONCE = 64

# Rows of five APIs: only Any can name them all.
Row = Any
Handle = Callable[[SharePartitionKey, Row, Row], Coroutine[Any, Any, None]]
"""Handles a row of the request and fills in the row of the response."""


class ShareStateHandlers:
    """Hands the requests to the share coordinator of this broker."""

    def __init__(self, coordinator: ShareStatePersister) -> None:
        self._coordinator = coordinator

    def initialize(
        self, context: RequestContext, request: initializing.InitializeShareGroupStateRequest
    ) -> Deferred:
        async def handle(key: SharePartitionKey, row: Row, result: Row) -> None:
            await self._coordinator.initialize(key, row.state_epoch, row.start_offset)

        response = initializing.InitializeShareGroupStateResponse()
        rows = (initializing.InitializeStateResult, initializing.PartitionResult)
        return _handle(context, request, response, rows, handle)

    def read(
        self, context: RequestContext, request: reading.ReadShareGroupStateRequest
    ) -> Deferred:
        async def handle(key: SharePartitionKey, row: Row, result: Row) -> None:
            state = await self._coordinator.read(key, row.leader_epoch)
            result.state_epoch, result.start_offset = state.state_epoch, state.start_offset
            result.state_batches = [reading.StateBatch(*batch) for batch in state.batches]

        response = reading.ReadShareGroupStateResponse()
        rows = (reading.ReadStateResult, reading.PartitionResult)
        return _handle(context, request, response, rows, handle)

    def write(
        self, context: RequestContext, request: writing.WriteShareGroupStateRequest
    ) -> Deferred:
        async def handle(key: SharePartitionKey, row: Row, result: Row) -> None:
            update = StateUpdate(
                row.state_epoch,
                row.leader_epoch,
                row.start_offset,
                row.delivery_complete_count,
                tuple(batch_of(batch) for batch in row.state_batches),
            )
            if any(not 0 <= each.first_offset <= each.last_offset for each in update.batches):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A batch has invalid offsets.")
            await self._coordinator.write(key, update)

        response = writing.WriteShareGroupStateResponse()
        rows = (writing.WriteStateResult, writing.PartitionResult)
        return _handle(context, request, response, rows, handle)

    def delete(
        self, context: RequestContext, request: deleting.DeleteShareGroupStateRequest
    ) -> Deferred:
        async def handle(key: SharePartitionKey, row: Row, result: Row) -> None:
            await self._coordinator.delete(key)

        response = deleting.DeleteShareGroupStateResponse()
        rows = (deleting.DeleteStateResult, deleting.PartitionResult)
        return _handle(context, request, response, rows, handle)

    def summary(
        self, context: RequestContext, request: summarizing.ReadShareGroupStateSummaryRequest
    ) -> Deferred:
        async def handle(key: SharePartitionKey, row: Row, result: Row) -> None:
            found = await self._coordinator.summary(key, row.leader_epoch)
            result.state_epoch, result.leader_epoch = found.state_epoch, found.leader_epoch
            result.start_offset = found.start_offset
            result.delivery_complete_count = found.delivery_complete_count

        response = summarizing.ReadShareGroupStateSummaryResponse()
        rows = (summarizing.ReadStateSummaryResult, summarizing.PartitionResult)
        return _handle(context, request, response, rows, handle)


def _handle(
    context: RequestContext, request: Any, response: Any, rows: tuple[Any, Any], handle: Handle
) -> Deferred:
    spawn(_handle_all(context, request, response, rows, handle), name="ShareGroupState")
    return DEFERRED


async def _handle_all(
    context: RequestContext, request: Any, response: Any, rows: tuple[Any, Any], handle: Handle
) -> None:
    topic_row, partition_row = rows
    for topic in request.topics:
        results = [partition_row(row.partition) for row in topic.partitions]
        calls = [
            _handle_row(request.group_id, topic.topic_id, row, result, handle)
            for row, result in zip(topic.partitions, results, strict=True)
        ]
        await gather_limited(calls, _AT_ONCE)
        response.results.append(topic_row(topic.topic_id, results))
    context.respond(response)


async def _handle_row(
    group_id: str, topic_id: bytes, row: Row, result: Row, handle: Handle
) -> None:
    try:
        if not group_id or row.partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group and partition must be set.")
        await handle(SharePartitionKey(group_id, topic_id, row.partition), row, result)
    except Exception as error:
        result.error_code, result.error_message = error_code(error), error_message(error)


def _error_rows(topic_row: Row, partition_row: Row) -> ErrorRows:
    def add(request: Any, response: Any, code: int, message: str | None) -> None:
        for topic in request.topics:
            rows = [
                partition_row(each.partition, error_code=code, error_message=message)
                for each in topic.partitions
            ]
            response.results.append(topic_row(topic.topic_id, rows))

    return add


ROUTES = (
    ApiRoute(
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ShareStateHandlers.initialize,
        check=OnCluster("CLUSTER_ACTION"),
        errors=_error_rows(initializing.InitializeStateResult, initializing.PartitionResult),
    ),
    ApiRoute(
        ApiKey.READ_SHARE_GROUP_STATE,
        ShareStateHandlers.read,
        check=OnCluster("CLUSTER_ACTION"),
        errors=_error_rows(reading.ReadStateResult, reading.PartitionResult),
    ),
    ApiRoute(
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ShareStateHandlers.write,
        check=OnCluster("CLUSTER_ACTION"),
        errors=_error_rows(writing.WriteStateResult, writing.PartitionResult),
    ),
    ApiRoute(
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ShareStateHandlers.delete,
        check=OnCluster("CLUSTER_ACTION"),
        errors=_error_rows(deleting.DeleteStateResult, deleting.PartitionResult),
    ),
    ApiRoute(
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ShareStateHandlers.summary,
        check=OnCluster("CLUSTER_ACTION"),
        errors=_error_rows(summarizing.ReadStateSummaryResult, summarizing.PartitionResult),
    ),
)
