"""A user's module that goes with a job beside the connector, for the option transform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def texts(batches: Iterator[Any]) -> Iterator[Any]:
    """The values as text, in capitals."""
    for batch in batches:
        values = [value.as_py().decode().upper() for value in batch.column("value")]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["text"])
