"""Arrow columns out of decoded Python values, by their buffers.

A builder takes a list of values, None where there is none, and returns an Arrow array of exactly
its type. Builders of structs, lists and maps are made of the builders of their parts, so that a
nested record becomes columns without a type inference. A value that does not fit raises
BadValueError (or one of VALUE_ERRORS); the caller finds the row.

Not with `pa.array`, for the reason that `read.arrays` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ottla.decode.bad_record import BadValueError
from pyspark_ottla.read.arrays import numbers, truths

# pyarrow has no type annotations; the aliases name its classes.
Array = Any
ArrowType = Any
Values: TypeAlias = Sequence[Any]
Build: TypeAlias = Callable[[Values], Array]
Convert: TypeAlias = Callable[[Any], Any]

# What a builder raises for values that do not fit.
VALUE_ERRORS = (ValueError, TypeError, OverflowError, AttributeError, KeyError, IndexError)
LONG_MAX = (1 << 63) - 1
# Arrow's strings, binaries and lists count with 32 bits.
OFFSET_MAX = (1 << 31) - 1


def _missing(values: Values) -> Any:
    """Which values are None; None if there are all of them, as in most columns."""
    if None not in values:
        return None
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def _validity(missing: Any) -> Any:
    if missing is None:
        return None
    return pa.py_buffer(np.packbits(~missing, bitorder="little"))


def _filled(values: Values, missing: Any, filler: Any) -> Values:
    if missing is None:
        return values
    return [filler if value is None else value for value in values]


def converted(convert: Convert, values: Values) -> Values:
    """Each value converted; None stays None."""
    if None not in values:
        return list(map(convert, values))
    return [None if value is None else convert(value) for value in values]


def _bounds(lengths: Any) -> Any:
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    if bounds[-1] > OFFSET_MAX:
        raise BadValueError("the values of a batch take more than 2 GiB; lower batchBytes")
    return pa.py_buffer(bounds.astype(np.int32))


def integers(kind: ArrowType, *, factor: int = 1, divisor: int = 1) -> Build:
    """Whole numbers, dates and timestamps; each value is multiplied, then divided downwards."""
    bits = kind.bit_width
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def build(values: Values) -> Array:
        missing = _missing(values)
        found = np.array(_filled(values, missing, 0), np.int64)
        largest = max(int(found.max()), -int(found.min())) if found.size else 0
        if factor != 1 and largest > LONG_MAX // factor:
            raise BadValueError(f"the number does not fit the type {kind}")
        found = found * factor // divisor
        if found.size and (found.min() < low or found.max() > high):
            raise BadValueError(f"the number does not fit the type {kind}")
        return numbers(found.astype(np.int32 if bits == 32 else np.int64), kind, missing)

    return build


def small_integers(kind: ArrowType) -> Build:
    """Numbers of 8 and 16 bits."""
    width = np.int8 if kind.bit_width == 8 else np.int16

    def build(values: Values) -> Array:
        missing = _missing(values)
        found = np.array(_filled(values, missing, 0), np.int64)
        if (found.astype(width) != found).any():
            raise BadValueError(f"the number does not fit the type {kind}")
        return numbers(found.astype(width), kind, missing)

    return build


def floats(kind: ArrowType) -> Build:
    width = np.float32 if kind.bit_width == 32 else np.float64

    def build(values: Values) -> Array:
        missing = _missing(values)
        found = np.array(_filled(values, missing, 0.0), np.float64)
        with np.errstate(over="ignore"):  # a float of 32 bits that is too large is infinite
            return numbers(found.astype(width), kind, missing)

    return build


def booleans(kind: ArrowType) -> Build:
    def build(values: Values) -> Array:
        content = truths(np.fromiter(map(bool, values), np.bool_, len(values))).buffers()[1]
        return pa.Array.from_buffers(kind, len(values), [_validity(_missing(values)), content])

    return build


def binaries(kind: ArrowType, convert: Convert | None = None) -> Build:
    """Byte strings."""

    def build(values: Values) -> Array:
        if convert is not None:
            values = converted(convert, values)
        missing = _missing(values)
        parts = _filled(values, missing, b"")
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        buffers = [_validity(missing), _bounds(lengths), pa.py_buffer(b"".join(parts))]
        return pa.Array.from_buffers(kind, len(values), buffers)

    return build


def texts(kind: ArrowType, convert: Convert | None = None) -> Build:
    """Strings; a lone surrogate, which UTF-8 cannot hold, is a ValueError."""
    if convert is None:
        return binaries(kind, str.encode)
    return binaries(kind, lambda value: convert(value).encode())


def decimals(kind: ArrowType, convert: Convert) -> Build:
    """Decimals; `convert` gives the unscaled whole number."""
    limit = 10**kind.precision

    def build(values: Values) -> Array:
        parts: list[bytes] = []
        for value in values:
            unscaled = 0 if value is None else convert(value)
            if not -limit < unscaled < limit:
                raise BadValueError(f"the number does not fit the type {kind}")
            parts.append(unscaled.to_bytes(16, "little", signed=True))
        buffers = [_validity(_missing(values)), pa.py_buffer(b"".join(parts))]
        return pa.Array.from_buffers(kind, len(values), buffers)

    return build


def structs(kind: ArrowType, parts: Sequence[tuple[Convert, Build]]) -> Build:
    """Structs; each part gets its value out of the whole and builds a column of them."""

    def build(values: Values) -> Array:
        children = [part(converted(get, values)) for get, part in parts]
        validity = _validity(_missing(values))
        return pa.Array.from_buffers(kind, len(values), [validity], children=children)

    return build


def lists(kind: ArrowType, items: Build) -> Build:
    def build(values: Values) -> Array:
        lengths = np.fromiter((0 if v is None else len(v) for v in values), np.int64, len(values))
        flat = items(list(chain.from_iterable(value for value in values if value is not None)))
        buffers = [_validity(_missing(values)), _bounds(lengths)]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[flat])

    return build


def maps(kind: ArrowType, keys: Build, items: Build) -> Build:
    """Maps from dicts, or from what has `items`."""

    def build(values: Values) -> Array:
        lengths = np.fromiter((0 if v is None else len(v) for v in values), np.int64, len(values))
        pairs = [pair for value in values if value is not None for pair in value.items()]
        columns = [keys([key for key, _ in pairs]), items([item for _, item in pairs])]
        entry = pa.struct([kind.key_field, kind.item_field])
        entries = pa.Array.from_buffers(entry, len(pairs), [None], children=columns)
        buffers = [_validity(_missing(values)), _bounds(lengths)]
        return pa.Array.from_buffers(kind, len(values), buffers, children=[entries])

    return build
