"""The routes of all APIs, as the modules of handlers register them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ottla.broker import handlers
from ottla.broker.requests import api_routes
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_context import HandlerEntry

ROOT = Path(next(iter(handlers.__path__)))


@cache
def handler_modules() -> tuple[ModuleType, ...]:
    """Every module of handlers that registers an API."""
    names = (
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted(ROOT.rglob("*.py"))
        if "\nROUTES = " in path.read_text(encoding="utf-8")
    )
    return tuple(import_module(f"{handlers.__name__}.{name}") for name in names)


def routes() -> Iterator[tuple[ModuleType, ApiRoute]]:
    """Each route with its module."""
    for module in handler_modules():
        for route in module.ROUTES:
            yield module, route


@cache
def route_of(key: int) -> ApiRoute | None:
    """The route of an API; None when no module has one."""
    return next((route for _, route in routes() if route.key == key), None)


def entry_of(key: int, handler: Any = None, **more: Any) -> HandlerEntry:
    """The line of the handler table for an API, with another handler; `more` are its fields."""
    route = route_of(key) or ApiRoute(key, _no_handler)
    return api_routes.entry_of(route, handler or _no_handler)._replace(**more)


def whole_table() -> list[HandlerEntry]:
    """The lines of everything that a broker can have, without handlers."""
    return [entry_of(key) for key in dict.fromkeys(route.key for _, route in routes())]


def _no_handler(*_: object) -> None:
    raise AssertionError("no handler is called here")
