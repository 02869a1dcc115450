"""The handler table with handlers that nobody calls."""

from __future__ import annotations

from typing import cast

from ottla.broker.handlers.table import Handlers, build_table
from ottla.broker.requests.request_channel import HandlerEntry


class _Nobody:
    """Has every attribute, each of them nobody."""

    def __getattr__(self, name: str) -> _Nobody:
        return self

    def __call__(self, *_: object) -> None:
        raise AssertionError("no handler is called here")


def whole_table() -> list[HandlerEntry]:
    """What a broker serves."""
    return build_table(cast(Handlers, _Nobody()))
