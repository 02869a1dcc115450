"""Changes to a response after its handler and before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext

# The response's type is the one of the API.
Amend = Callable[[Any], None]


def amend(context: RequestContext, change: Amend) -> None:
    """Have `change` change the response before it is sent; several are applied in order.

    An error response that is built because the handler failed goes through it, too.
    """
    before = context.amend

    def both(response: Any) -> None:
        if before is not None:
            before(response)
        change(response)

    context.amend = change if before is None else both
