"""The error codes of a response, wherever they stand in it."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.protocol.message import Struct


def error_codes(part: object) -> Iterator[int]:
    """Every error code of a message, a struct or a list of them, at any depth."""
    if isinstance(part, list):
        for each in part:
            yield from error_codes(each)
    elif isinstance(part, Struct):
        for name in part.__slots__:
            value = getattr(part, name)
            if name.endswith("error_code"):
                yield value
            else:
                yield from error_codes(value)
