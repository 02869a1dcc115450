"""Each API is handled in a module that names it, and a module of handlers handles an API."""

from __future__ import annotations

import ast
import re

from ottla.protocol.registry import API
from tests.doubles.api_routes import handler_modules, routes
from tests.tidy.source_tree import modules, parsed

PREFIX = "ottla.broker.handlers."
TABLE = "ottla.broker.handlers.table"
COMMON = "ottla.broker.handlers.common."  # what several handlers use


def test_every_api_is_named_by_the_module_that_handles_it() -> None:
    """In its docstring, with the key: "Fetch (1), versions 0 to 17: ..."."""
    wrong = []
    for module, route in routes():
        name = API[route.key].name
        docstring = ast.get_docstring(parsed(modules()[module.__name__])) or ""
        if not re.search(rf"\b{name} \({route.key}\)", " ".join(docstring.split())):
            wrong.append(f"{module.__name__} does not name {name} ({route.key})")
    assert not wrong, "\n".join(wrong)


def test_every_route_names_a_handler_of_its_module() -> None:
    """Otherwise the broker would not find it with the object that it builds."""
    others = [
        f"{module.__name__} has a route to {route.handler.__qualname__}"
        for module, route in routes()
        if route.handler.__module__ != module.__name__
    ]
    assert not others, "\n".join(others)


def test_every_module_of_handlers_handles_an_api() -> None:
    handling = {module.__name__ for module in handler_modules()}
    others = [
        name
        for name, path in modules().items()
        if name.startswith(PREFIX)
        and path.name != "__init__.py"
        and name not in handling
        and name != TABLE
        and not name.startswith(COMMON)
    ]
    assert not others


def test_the_modules_in_common_handle_none() -> None:
    assert not [module for module in handler_modules() if module.__name__.startswith(COMMON)]
