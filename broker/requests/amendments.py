"""Changes to a response after its handler and before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any, Protocol

from ottla.broker.runtime.slices import run_in_slices
from ottla.protocol.steps import Steps, run_at_once

# The response's type is the one of the API. What changes very many rows is a generator (`Steps`).
Amend = Callable[[Any], Any]


class Amendable(Protocol):
    """The context of a request."""

    amend: Amend | None


def amend(context: Amendable, change: Amend) -> None:
    """Have `change` change the response before it is sent; several are applied in order.

    An error response that is built because the handler failed goes through it, too.
    """
    before = context.amend

    def both(response: Any) -> Any:
        assert before is not None
        steps = before(response)
        if type(steps) is GeneratorType:
            return _one_after_the_other(steps, change, response)
        return change(response)

    context.amend = change if before is None else both


def _one_after_the_other(steps: Steps[None], change: Amend, response: Any) -> Steps[None]:
    yield from steps
    more = change(response)
    if type(more) is GeneratorType:
        yield from more


def apply(change: Amend, response: Any) -> None:
    """Change the response at once."""
    steps = change(response)
    if type(steps) is GeneratorType:
        run_at_once(steps)


def amended(context: Amendable, response: Any) -> Steps[None]:
    """Amend a response with very many rows while it is built, and not when it is sent."""
    change, context.amend = context.amend, None
    if change is not None:
        steps = change(response)
        if type(steps) is GeneratorType:
            yield from steps


async def apply_in_slices(change: Amend, response: Any) -> None:
    """Change a response with very many rows; other tasks run in between."""
    steps = change(response)
    if type(steps) is GeneratorType:
        await run_in_slices(steps)
