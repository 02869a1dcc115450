"""Questions about the cluster that come before this broker knows the cluster.

A broker serves as soon as its ports are open, but learns of the others, and of itself, by the first
UpdateMetadata request of the controller. A client that asks in between waits for it (Kafka answers
that there are no brokers, and some clients take that for the whole truth).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.requests.request_channel import Handler, HandlerResult, RequestContext
from ottla.protocol.message import Message

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache

# Well below the time-outs of clients; a cluster without a controller is told about as it is.
WAIT_MS = 5_000

R = TypeVar("R", bound=Message)


def once_known(metadata: MetadataCache, response: Callable[[RequestContext, Any], R]) -> Handler:
    """`answer` as it is, but that it waits for the first picture of the cluster."""

    async def later(context: RequestContext, request: Any) -> R:
        await metadata.wait_until(lambda snapshot: bool(snapshot.brokers), WAIT_MS)
        return response(context, request)

    def handle(context: RequestContext, request: Any) -> HandlerResult:
        if metadata.snapshot.brokers:
            return response(context, request)
        return later(context, request)

    return handle
