"""Delays a request until the first UpdateMetadata request of the controller has come.

A broker accepts connections before it has the metadata of the cluster, itself included. A client
that sends Metadata or DescribeCluster in between is served after the first UpdateMetadata request.
Kafka responds with an empty list of brokers there, which some clients take as final.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_channel import (
    Deferred,
    Handler,
    HandlerResult,
    RequestContext,
)
from ottla.broker.requests.request_context import started
from ottla.protocol.message import Message

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache

# Well below the request timeouts of clients; after that the response is what the cache holds.
MAX_WAIT_MS = 5_000


def after_first_metadata(
    metadata: MetadataCache, handler: Callable[[RequestContext, Any], HandlerResult]
) -> Handler:
    """`handler`, called when the metadata cache has brokers, or after MAX_WAIT_MS."""

    async def later(context: RequestContext, request: Any) -> Message | Deferred | None:
        await metadata.wait_until(lambda snapshot: bool(snapshot.brokers), MAX_WAIT_MS)
        result: Any = started(handler(context, request))
        if type(result) is CoroutineType:
            result = await result
        found: Message | Deferred | None = result
        return found

    def handle(context: RequestContext, request: Any) -> HandlerResult:
        if metadata.snapshot.brokers:
            return handler(context, request)
        return later(context, request)

    return handle
