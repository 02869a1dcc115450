"""Checks requests before their handlers, on a broker with an authorizer.

A check refuses the whole request by raising, or removes what its sender is not allowed and amends
the response with the error rows for it; the handler gets the rest and needs no knowledge of
authorization. A request of an API without a check is refused, so a forgotten check is not a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from copy import copy
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.requests.request_context import OnCluster, amend, started
from ottla.broker.security.audit.repeats import LINES_OF_ADDRESS
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import API
from ottla.protocol.steps import run, run_at_once

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import (
        Deferred,
        Handler,
        HandlerEntry,
        HandlerResult,
        RequestContext,
    )
    from ottla.broker.security.authorization.authorizer import Authorizer
    from ottla.protocol.message import Message
    from ottla.protocol.steps import Steps

T = TypeVar("T")

# The request's type is the one of the API; a table of all of them can only say Any. A check of very
# many names returns its steps.
Check = Callable[["RequestContext", Any], "Steps[None] | None"]


_FAILED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Guard:
    """The building blocks of checks."""

    def __init__(self, authorizer: Authorizer) -> None:
        self.authorizer = authorizer

    def unchecked(self, context: RequestContext, request: Any) -> None:
        """The check of an API that every client may use, or whose handler checks by itself."""

    def require(
        self, context: RequestContext, operation: Operation, kind: ResourceType, name: str
    ) -> None:
        """Refuse the whole request unless this is allowed. Raises KafkaError."""
        if not self.authorizer.allows(context, operation, kind, name):
            raise KafkaError(_FAILED[kind])

    def require_on_cluster(self, context: RequestContext, operation: Operation) -> None:
        if not self.authorizer.allows_on_cluster(context, operation):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def sort_out(
        self,
        context: RequestContext,
        operation: Operation,
        kind: ResourceType,
        items: Iterable[T],
        name_of: Callable[[T], str],
        *,
        log_if_denied: bool = True,
    ) -> tuple[list[T], list[T]]:
        """Those that are allowed and those that are not; each name is checked once. Of very many
        denials the first are logged, and the number of the others."""
        steps = self.sort_out_in_steps(
            context, operation, kind, items, name_of, log_if_denied=log_if_denied
        )
        return run_at_once(steps)

    def sort_out_in_steps(
        self,
        context: RequestContext,
        operation: Operation,
        kind: ResourceType,
        items: Iterable[T],
        name_of: Callable[[T], str],
        *,
        log_if_denied: bool = True,
    ) -> Steps[tuple[list[T], list[T]]]:
        """As `sort_out`. Pauses between two names."""
        decisions: dict[str, bool] = {}
        allowed: list[T] = []
        denied: list[T] = []
        names_denied = 0
        for item in items:
            name = name_of(item)
            is_allowed = decisions.get(name)
            if is_allowed is None:
                if decisions:
                    yield
                is_allowed = decisions[name] = self.authorizer.allows(
                    context,
                    operation,
                    kind,
                    name,
                    log_if_denied=log_if_denied and names_denied < LINES_OF_ADDRESS,
                )
                names_denied += not is_allowed
            (allowed if is_allowed else denied).append(item)
        if log_if_denied and names_denied > LINES_OF_ADDRESS:
            self.authorizer.denied_more(context, names_denied - LINES_OF_ADDRESS)
        return allowed, denied

    def visible(
        self,
        context: RequestContext,
        kind: ResourceType,
        items: Iterable[T],
        name_of: Callable[[T], str],
    ) -> Steps[list[T]]:
        """Return the items that the request's sender may describe; log nothing.

        Pauses between two items."""
        found = []
        for item in items:
            yield
            if self.authorizer.allows(
                context, Operation.DESCRIBE, kind, name_of(item), log_if_denied=False
            ):
                found.append(item)
        return found

    def keep_allowed(
        self,
        context: RequestContext,
        request: Any,
        operation: Operation,
        kind: ResourceType,
        fields: tuple[str, str],
        name_of: Callable[[Any], str],
        message: str | None = None,
    ) -> None:
        """Remove what is not allowed from a list of the request; the response gets its error rows.

        `fields` are the list in the request and the list of rows in the response.
        """
        items_field, rows_field = fields
        allowed, denied = self.sort_out(
            context, operation, kind, getattr(request, items_field), name_of
        )
        if denied:
            rows = refused_rows(context, request, fields, denied, _FAILED[kind], message)
            setattr(request, items_field, allowed)
            amend(context, lambda response: getattr(response, rows_field).extend(rows))


def refused_rows(
    context: RequestContext,
    request: Any,
    fields: tuple[str, str],
    denied: list[Any],
    code: int,
    message: str | None = None,
) -> list[Any]:
    """The rows of the response that refuses these items of a request, and nothing else."""
    items_field, rows_field = fields
    key = context.header.api_key
    part = copy(request)
    setattr(part, items_field, denied)
    reply: Any = API[key].response()
    add_rows = context.route.entry.errors
    assert add_rows is not None, f"the route of {API[key].name} has no error rows"
    add_rows(part, reply, code, message)
    rows: list[Any] = getattr(reply, rows_field)
    return rows


def check_of(entry: HandlerEntry, guards: Sequence[Guard]) -> Check:
    """The check that the route of an API names. LookupError when no guard has it."""
    check = entry.check
    if check is None:
        return _refused
    if isinstance(check, OnCluster):
        return partial(_check_on_cluster, guards[0], Operation[check.operation])
    if not isinstance(check, str):
        return partial(check, guards[0])
    for guard in guards:
        found: Check | None = getattr(guard, check, None)
        if found is not None:
            return found
    raise LookupError(f"the route of {entry.name} names the check {check!r}, which no guard has")


def _check_on_cluster(
    guard: Guard, operation: Operation, context: RequestContext, request: Any
) -> None:
    guard.require_on_cluster(context, operation)


def protect(entry: HandlerEntry, check: Check) -> HandlerEntry:
    """The line of the handler table with its check in front of the handler."""
    handler = entry.handler

    def guarded(context: RequestContext, request: Any) -> HandlerResult:
        steps = check(context, request)
        if steps is not None:
            rest = run(steps)
            if rest is not None:
                return _handle_when_checked(rest, handler, context, request)
        return handler(context, request)

    return entry._replace(handler=guarded)


async def _handle_when_checked(
    checking: Coroutine[Any, Any, None], handler: Handler, context: RequestContext, request: Any
) -> Message | Deferred | None:
    await checking
    result: Any = started(handler(context, request))
    if type(result) is CoroutineType:
        result = await result
    found: Message | Deferred | None = result
    return found


def _refused(context: RequestContext, request: Any) -> None:
    """The check of an API that has none."""
    raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
