"""Each API is handled in a module that names it, and a module of handlers handles an API."""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers import table as table_module
from ottla.broker.handlers.table import Handlers, build_table
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.message import Message
from tests.tidy.source_tree import modules, parsed

PREFIX = "ottla.broker.handlers."
TABLE = "ottla.broker.handlers.table"
COMMON = "ottla.broker.handlers.common."  # what several handlers use


class HandlerOf:
    """Stands for an object of a module, and for every handler that is a method of it."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __getattr__(self, name: str) -> HandlerOf:
        return self

    def __call__(self, *_: object) -> HandlerOf:
        return self


def modules_of_attributes() -> dict[str, str]:
    """The module that defines the class of each attribute of `Handlers`, by the annotations."""
    tree = parsed(modules()[TABLE])
    imported = {
        alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (handlers,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Handlers"
    )
    found = {}
    for line in handlers.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            names = {node.id for node in ast.walk(line.annotation) if isinstance(node, ast.Name)}
            (found[line.target.id],) = {imported[name] for name in names & imported.keys()} - {
                "collections.abc"
            }
    return found


def modules_of_apis() -> dict[tuple[str, int], str]:
    """The module that handles each API of the table, by its name and key."""
    handlers = SimpleNamespace(
        **{name: HandlerOf(module) for name, module in modules_of_attributes().items()}
    )
    found = {}
    for entry in build_table(cast(Handlers, handlers)):
        handler: Any = entry.handler
        if getattr(handler, "__module__", TABLE) == table_module.__name__:
            # One that the table makes at the first request.
            handler = handler(cast(RequestContext, None), cast(Message, None))
        module = handler.module if isinstance(handler, HandlerOf) else handler.__module__
        found[entry.name, entry.api_key] = module
    return found


def test_every_api_is_named_by_the_module_that_handles_it() -> None:
    """In its docstring, with the key: "Fetch (1), versions 0 to 17: ..."."""
    wrong = []
    for (name, key), module in modules_of_apis().items():
        docstring = ast.get_docstring(parsed(modules()[module])) or ""
        if not re.search(rf"\b{name} \({key}\)", " ".join(docstring.split())):
            wrong.append(f"{module} does not name {name} ({key})")
    assert not wrong, "\n".join(wrong)


def test_every_module_of_handlers_handles_an_api() -> None:
    handling = set(modules_of_apis().values())
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
    assert not [name for name in modules_of_apis().values() if name.startswith(COMMON)]
