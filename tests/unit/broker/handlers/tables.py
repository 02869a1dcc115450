"""The handler table with placeholders for handlers."""

from __future__ import annotations

from typing import Any, cast

from ottla.broker.handlers.table import Handlers, build_table
from ottla.broker.requests.request_channel import HandlerEntry


class _Placeholder:
    """Has every attribute, each of them itself."""

    def __getattr__(self, name: str) -> _Placeholder:
        return self

    def __call__(self, *_: object) -> None:
        raise AssertionError("no handler is called here")


class _Enabled(_Placeholder):
    """Consumer groups, of which the table has the versions."""

    max_version = 1


def placeholders() -> Handlers:
    """Handlers of everything that a broker can have."""
    names = dict.fromkeys(Handlers._fields, cast(Any, _Placeholder()))
    return Handlers(**{**names, "consumer_groups": _Enabled()})


def whole_table() -> list[HandlerEntry]:
    """The table of a broker."""
    return build_table(placeholders())
