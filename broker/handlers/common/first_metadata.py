"""Delays a request until the controller has sent the metadata of the cluster.

A broker accepts connections before it knows the cluster, itself included. A client that sends
Metadata or DescribeCluster in between is served once the brokers are known, and the topics if there
are any. Kafka responds with empty lists there, which some clients take as final: `list topics` of a
broker that was just restarted showed none.
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
    """`handler`, called when the metadata cache is loaded, or after MAX_WAIT_MS."""

    async def later(context: RequestContext, request: Any) -> Message | Deferred | None:
        await metadata.wait_until(lambda _: metadata.is_loaded(), MAX_WAIT_MS)
        result: Any = started(handler(context, request))
        if type(result) is CoroutineType:
            result = await result
        found: Message | Deferred | None = result
        return found

    def handle(context: RequestContext, request: Any) -> HandlerResult:
        if metadata.is_loaded():
            return handler(context, request)
        return later(context, request)

    return handle
