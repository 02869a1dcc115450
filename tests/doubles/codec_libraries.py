"""A Python without some of the libraries that do the work of codecs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ottla.protocol.records import compression

NATIVE = ("cramjam", "lz4", "lz4.frame")
ARROW = "ottla.protocol.records.arrow_codecs"


@contextmanager
def hidden(*modules: str) -> Iterator[None]:
    """The codecs find none of these modules while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in modules:
            patch.setitem(sys.modules, name, None)
        compression._library.cache_clear()
        yield
    compression._library.cache_clear()
