"""Responses of handlers that returned DEFERRED."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import DEFERRED, Deferred
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.steps import Steps, run

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext
    from ottla.protocol.message import Message

logger = logging.getLogger("ottla.requests")


def respond_later(context: RequestContext, steps: Steps[Message | Deferred | None]) -> None:
    """Send the response that `steps` return, from a callback; DEFERRED sends nothing yet.

    A short one is sent before this returns. The rest of a long one runs in turns, and so does its
    encoding. An error closes the connection: the caller handles another request.
    """
    try:
        result = run(steps)
    except Exception:
        _failed(context)
        return
    if type(result) is CoroutineType:
        spawn(_respond(context, result), name="respond-later")
    elif result is not DEFERRED:
        context.respond(result)  # type: ignore[arg-type]  # what is left of the union


async def _respond(
    context: RequestContext, rest: Coroutine[Any, Any, Message | Deferred | None]
) -> None:
    try:
        result = await rest
        if not isinstance(result, Deferred):
            await context.respond_in_turns(result)
    except Exception:
        _failed(context)


def _failed(context: RequestContext) -> None:
    logger.exception(
        "%s of %s:%d failed, closing the connection",
        context.route.task_name,
        context.client_host,
        context.client_port,
    )
    context.close("the request failed when its response was due")
