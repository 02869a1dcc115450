"""Responses with very many rows to small requests, such as ListGroups of a large cluster."""

from collections.abc import Generator

from ottla.broker.requests.request_context import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.slices import run_in_slices
from ottla.protocol.message import Message


async def respond_in_slices(
    context: RequestContext, steps: Generator[None, None, Message]
) -> Deferred:
    """Builds the response that `steps` return, and encodes it, in slices."""
    response = await run_in_slices(steps)
    await context.respond_in_slices(response)
    return DEFERRED
