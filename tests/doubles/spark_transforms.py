"""Functions for the option `transform`; Spark's Python processes import them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def lengths(batches: Iterator[Any]) -> Iterator[Any]:
    """Of each record its offset and the length of its value, as 32 bits; rows without are left
    out."""
    for batch in batches:
        some = batch.filter(pc.is_valid(batch.column("value")))
        yield pa.record_batch(
            {"bytes": pc.binary_length(some.column("value")), "offset": some.column("offset")}
        )


def nothing_but_text(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        yield pa.record_batch({"text": ["x"]})


NO_FUNCTION = 5
