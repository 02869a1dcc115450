"""The line with which a handler module registers an API.

A module of `ottla.broker.handlers` has `ROUTES`, with one `ApiRoute` for each API that it handles:
all that the broker knows of the API besides its definition and its handler. The handler table is
made of them (`ottla.broker.handlers.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import modules
from types import ModuleType
from typing import NamedTuple

from ottla.broker.requests.request_context import (
    Check,
    ErrorRows,
    Handler,
    HandlerEntry,
    HandlerResult,
)
from ottla.broker.requests.request_parts import LARGE, ORDINARY, Items, Limits
from ottla.protocol.registry import API


class ApiRoute(NamedTuple):
    """An API, the method that handles it, and how its requests are checked and divided."""

    key: int
    #: A method of the class whose object the broker builds, or a function of the module.
    handler: Callable[..., HandlerResult]
    #: How a broker with an authorizer checks requests; it refuses all of an API without a check.
    check: Check | None = None
    #: Adds the rows to the response when the handler raised; None if the response has none.
    errors: ErrorRows | None = None
    #: The lists by which a long request is divided: several where the list depends on the version.
    #: At most one of them is not empty.
    items: tuple[Items, ...] = ()
    #: How many elements a request may have; by default more if it can be divided.
    limits: Limits | None = None
    #: Whether clients send it before they have authenticated. It needs no check.
    before_authentication: bool = False
    #: Whether only brokers send it, to each other: a request quota of all users must not mute a
    #: controller. Kafka has the same list: `sendResponseExemptThrottle`.
    of_brokers: bool = False


def entry_of(route: ApiRoute, handler: Handler, max_version: int | None = None) -> HandlerEntry:
    """The line of the handler table for a route."""
    api = API[route.key]
    return HandlerEntry(
        route.key,
        api.name,
        api.min_version,
        api.max_version if max_version is None else max_version,
        handler,
        before_authentication=route.before_authentication,
        exempt_from_request_quota=route.of_brokers,
        check=route.check,
        errors=route.errors,
        items=route.items,
        limits=route.limits or (LARGE if route.items else ORDINARY),
    )


def entries_of(handler: object) -> Iterator[HandlerEntry]:
    """The lines of the handler table for an object with handlers, or a module of functions.

    Its routes are those of its module whose handlers are methods of its class. `max_version` of the
    object, if it has one, is the newest version that it serves.
    """
    if isinstance(handler, ModuleType):
        for route in handler.ROUTES:
            yield entry_of(route, route.handler)
        return
    kind, max_version = type(handler), getattr(handler, "max_version", None)
    for route in modules[kind.__module__].ROUTES:
        name = route.handler.__name__
        if any(vars(base).get(name) is route.handler for base in kind.__mro__):
            yield entry_of(route, getattr(handler, name), max_version)
