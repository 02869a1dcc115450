"""The handler table with placeholders for handlers."""

from __future__ import annotations

from typing import cast

from ottla.broker.handlers.table import Handlers, build_table
from ottla.broker.requests.request_channel import HandlerEntry


class _Placeholder:
    """Has every attribute, each of them itself."""

    def __getattr__(self, name: str) -> _Placeholder:
        return self

    def __call__(self, *_: object) -> None:
        raise AssertionError("no handler is called here")


def whole_table() -> list[HandlerEntry]:
    """The table of a broker."""
    return build_table(cast(Handlers, _Placeholder()))
