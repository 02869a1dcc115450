"""Arrow arrays out of numpy's, by their buffers.

Not with `pa.array` or `pa.scalar`: to see whether what they get is from pandas, they import pandas
where that is installed. That is half a second and fifty megabytes for nothing in each Python
process of a cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# pyarrow has no type annotations; the aliases name its classes.
Array = Any


def numbers(
    values: npt.NDArray[Any], kind: Any, null: npt.NDArray[np.bool_] | None = None
) -> Array:
    """An array of a fixed-width type; `values` must have its width and is not copied.

    `null` marks the elements that are null, whatever their value.
    """
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def truths(values: npt.NDArray[np.bool_]) -> Array:
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def repeated_text(text: str, count: int) -> Array:
    """`count` times the same text."""
    content = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(content))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)
