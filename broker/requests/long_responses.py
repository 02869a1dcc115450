"""Responses with very many rows, from handlers that are no generators yet.

A handler that is a generator function needs none of this: see `HandlerResult`.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.broker.requests.request_context import DEFERRED, Deferred, RequestContext
from ottla.protocol.message import Message
from ottla.protocol.steps import Steps, run, run_in_turns

M = TypeVar("M", bound=Message)


def respond_when_built(
    context: RequestContext, steps: Steps[M]
) -> M | Coroutine[Any, Any, Deferred]:
    """Return the response of `steps` if they end within a turn, else a coroutine that responds."""
    found = run(steps)
    return _respond(context, found) if isinstance(found, Coroutine) else found


async def respond_after_building(context: RequestContext, steps: Steps[M]) -> M | Deferred:
    """As `respond_when_built`, for a handler that has waited for something."""
    found = respond_when_built(context, steps)
    return await found if isinstance(found, Coroutine) else found


async def respond_in_slices(context: RequestContext, steps: Steps[Message]) -> Deferred:
    """Build the response that `steps` return, and encode it, in turns."""
    return await _respond(context, run_in_turns(steps))


async def _respond(context: RequestContext, building: Coroutine[Any, Any, Message]) -> Deferred:
    await context.respond_in_turns(await building)
    return DEFERRED
