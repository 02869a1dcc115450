"""Arrow arrays out of numpy's, by their buffers.

Not with `pa.array` or `pa.scalar`: to see whether what they get is from pandas, they import pandas
where that is installed. That is half a second and fifty megabytes for nothing in each Python
process of a cluster. And not with methods such as `take`: they import `pyarrow.compute`, which
creates a documented Python function for each of some three hundred functions (50 ms of CPU time).
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
    buffers = [_valid(null), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _valid(null: npt.NDArray[np.bool_] | None) -> Any:
    """The bits of the elements that are not null; None if there is no other."""
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))


def _load_call_function() -> Any:
    """pyarrow's functions by name, in every version that has them where they are looked for."""
    try:
        from pyarrow import _compute

        return _compute.call_function, _compute.CastOptions
    except (ImportError, AttributeError):
        import pyarrow.compute

        return pyarrow.compute.call_function, pyarrow.compute.CastOptions


_call_function, _CastOptions = _load_call_function()


def gathered(array: Array, indices: Array, kind: Any) -> Array:
    """The elements of a binary array at these indices, null where an index is null, as `kind`.

    Raises pa.ArrowInvalid for text that is not UTF-8.
    """
    taken = _call_function("take", [array, indices])
    if kind.equals(taken.type):
        return taken
    return _call_function("cast", [taken], _CastOptions(kind))


def truths(values: npt.NDArray[np.bool_]) -> Array:
    """A boolean array."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def lists(
    offsets: npt.NDArray[np.int32], entries: Array, kind: Any, null: npt.NDArray[np.bool_]
) -> Array:
    """A list array: list n has the entries from `offsets[n]` to `offsets[n + 1]`."""
    buffers = [_valid(null), pa.py_buffer(np.ascontiguousarray(offsets))]
    return pa.Array.from_buffers(kind, len(null), buffers, children=[entries])


def repeated_text(text: str, count: int) -> Array:
    """`count` times the same text."""
    content = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(content))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)
