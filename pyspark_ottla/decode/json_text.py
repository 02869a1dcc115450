"""JSON texts as Arrow columns of a schema.

Strict where Spark's `from_json` guesses: a value of another type is a bad record, not null. Fields
that the schema does not name are ignored, absent ones are null. The texts are parsed by Python's
own parser: that of pyarrow ends the process at some malformed documents.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pyspark_ottla.decode import builders
from pyspark_ottla.decode.bad_record import BadRecordError, BadValueError
from pyspark_ottla.decode.builders import ArrowType, Build, Convert

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)
_FRACTION = re.compile(r"(\.\d{1,6})\d*")
# A number of more digits is no decimal of 38 digits; a conversion takes quadratic time.
NUMBER_CHARACTERS_MAX = 1000
LIMIT = 1 << 63


def _reject(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def json_parser(kind: ArrowType) -> Callable[[bytes, int], Any]:
    """A function that parses the text from a position on."""
    options: dict[str, Any] = {"parse_constant": _reject}
    if _has_decimal(kind):
        options["parse_float"] = Decimal

    decoder = json.JSONDecoder(**options)

    def parse(data: bytes, start: int) -> Any:
        try:
            return decoder.decode(str(data[start:] if start else data, "utf-8"))
        except RecursionError:
            raise BadRecordError("is JSON that is nested too deeply") from None
        except ValueError as error:
            raise BadRecordError(f"is no JSON: {error}") from None

    return parse


def _has_decimal(kind: ArrowType) -> bool:
    if pa.types.is_decimal(kind):
        return True
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return any(map(_has_decimal, inner))


def json_builder(kind: ArrowType, path: str = "") -> Build:
    """A builder of columns of that type out of what `json.loads` returns."""
    types = pa.types
    if types.is_struct(kind):
        checked = _checked(dict, path)
        parts = [
            (_getter(field.name), json_builder(field.type, f"{path}.{field.name}".lstrip(".")))
            for field in kind
        ]
        return _after(checked, builders.structs(kind, parts))
    if types.is_list(kind):
        items = json_builder(kind.value_type, f"{path}[]")
        return _after(_checked(list, path), builders.lists(kind, items))
    if types.is_map(kind):
        keys, items = builders.texts(kind.key_type), json_builder(kind.item_type, f"{path}{{}}")
        return _after(_checked(dict, path), builders.maps(kind, keys, items))
    if types.is_string(kind):
        return builders.texts(kind, _text)
    if types.is_binary(kind):
        return builders.binaries(kind, _described(_from_base64, "base64", path))
    if types.is_boolean(kind):
        return _after(_checked(bool, path), builders.booleans(kind))
    if types.is_decimal(kind):
        unscaled = _described(lambda value: _unscaled(value, kind.scale), str(kind), path)
        return builders.decimals(kind, unscaled)
    return _json_number(kind, path)


def _json_number(kind: ArrowType, path: str) -> Build:
    types = pa.types
    if types.is_integer(kind):
        build = builders.small_integers(kind) if kind.bit_width < 32 else builders.integers(kind)
        return _after(_described(_integer, str(kind), path), build)
    if types.is_floating(kind):
        return _after(_described(_float, str(kind), path), builders.floats(kind))
    if types.is_timestamp(kind):
        convert = _instant if kind.tz else _local_time
        return _after(_described(convert, "an ISO 8601 time", path), builders.integers(kind))
    if types.is_date(kind):
        return _after(_described(_days, "an ISO 8601 date", path), builders.integers(kind))
    raise BadValueError(f"JSON has nothing for the type {kind}")


def _getter(name: str) -> Convert:
    return lambda found: found.get(name)


def _after(convert: Convert, build: Build) -> Build:
    return lambda values: build(builders.converted(convert, values))


def _checked(wanted: type, path: str) -> Convert:
    expected = {dict: "an object", list: "an array", bool: "true or false"}[wanted]

    def check(value: Any) -> Any:
        if type(value) is not wanted:
            raise BadValueError(_mismatch(value, expected, path))
        return value

    return check


def _described(convert: Convert, expected: str, path: str) -> Convert:
    def described(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, TypeError, ArithmeticError):
            raise BadValueError(_mismatch(value, expected, path)) from None

    return described


def _mismatch(value: Any, expected: str, path: str) -> str:
    text = _text(value)
    shown = text if len(text) <= 60 else text[:60] + "..."
    return f"{path or 'the whole'} is {shown!r} and not {expected}"


def _text(value: Any) -> str:
    """Strings as they are, anything else as its JSON."""
    if type(value) in (str, Decimal):
        return str(value)
    return json.dumps(value, default=float, separators=(",", ":"), ensure_ascii=False)


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    # The bound comes first: the whole number of 1e999999999 would fill the memory.
    if isinstance(value, (float, Decimal)) and -LIMIT <= value < LIMIT and value == int(value):
        return int(value)
    raise ValueError


def _float(value: Any) -> float:
    if type(value) in (int, float, Decimal):
        return float(value)
    raise ValueError


def _from_base64(value: Any) -> bytes:
    if type(value) is not str:
        raise ValueError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError from None


def _unscaled(value: Any, scale: int) -> int:
    if type(value) not in (int, float, Decimal, str) or len(str(value)) > NUMBER_CHARACTERS_MAX:
        raise ValueError
    number = Decimal(str(value))
    if not number.is_finite() or abs(number.adjusted()) > NUMBER_CHARACTERS_MAX:
        raise ValueError
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    if shift < 0 and any(digits[shift:]):
        raise ValueError  # digits would be lost
    kept = digits if shift >= 0 else digits[:shift]
    unscaled: int = int("".join(map(str, kept)) or "0") * 10 ** max(shift, 0)
    return -unscaled if sign else unscaled


def _parsed_time(value: Any) -> datetime:
    """An ISO 8601 time, as Python 3.10 reads it too."""
    if type(value) is not str or len(value) > 64:
        raise ValueError
    text = value[:-1] + "+00:00" if value[-1:] in ("Z", "z") else value
    return datetime.fromisoformat(_FRACTION.sub(lambda match: match[1].ljust(7, "0"), text))


def _instant(value: Any) -> int:
    found = _parsed_time(value)
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return (found - EPOCH) // MICROSECOND


def _local_time(value: Any) -> int:
    found = _parsed_time(value)
    if found.tzinfo is not None:
        raise ValueError
    return (found.replace(tzinfo=timezone.utc) - EPOCH) // MICROSECOND


def _days(value: Any) -> int:
    if type(value) is not str:
        raise ValueError
    return date.fromisoformat(value).toordinal() - EPOCH.date().toordinal()
