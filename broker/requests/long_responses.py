"""Responses with very many rows to small requests, such as ListGroups of a large cluster."""

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from ottla.broker.requests.request_context import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.slices import STEPS_PER_SLICE, run_in_slices
from ottla.protocol.message import Message

M = TypeVar("M", bound=Message)


def respond_when_built(
    context: RequestContext, steps: Generator[None, None, M]
) -> M | Coroutine[Any, Any, Deferred]:
    """The response that `steps` return if they end within a slice; otherwise the rest is done, and
    the response encoded, in slices."""
    for _ in range(STEPS_PER_SLICE):
        try:
            next(steps)
        except StopIteration as end:
            response: M = end.value
            return response
    return respond_in_slices(context, steps)


async def respond_after_building(
    context: RequestContext, steps: Generator[None, None, M]
) -> M | Deferred:
    """As `respond_when_built`, for a handler that has waited for something."""
    found = respond_when_built(context, steps)
    return await found if isinstance(found, Coroutine) else found


async def respond_in_slices(
    context: RequestContext, steps: Generator[None, None, Message]
) -> Deferred:
    """Builds the response that `steps` return, and encodes it, in slices."""
    response = await run_in_slices(steps)
    await context.respond_in_turns(response)
    return DEFERRED
