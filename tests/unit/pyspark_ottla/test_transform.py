"""The user's function in the source: found by name, and held to the columns Spark was given."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.transform import is_function, load_function, pickled, transformed

DOUBLES = "tests.doubles.spark_transforms"
BATCH = pa.record_batch({"a": [1, 2]})
SCHEMA = pa.schema([("offset", pa.int64()), ("bytes", pa.int64())])


def records() -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"value": [b"a", None, b"ccc"], "offset": [5, 6, 7]}),
        pa.record_batch({"value": [b"dd"], "offset": [8]}),
    ]


def test_columns_are_put_in_order_and_cast() -> None:
    found = list(transformed(f"{DOUBLES}:lengths", iter(records()), SCHEMA))
    assert all(batch.schema == SCHEMA for batch in found)
    assert [batch.to_pydict() for batch in found] == [
        {"offset": [5, 7], "bytes": [1, 3]},
        {"offset": [8], "bytes": [2]},
    ]


def test_what_fits_is_passed_on_as_it_is() -> None:
    [first, second] = records()
    found = list(transformed("builtins:iter", iter([first, second]), first.schema))
    assert found[0] is first


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{DOUBLES}:nothing_but_text", "does not fit the columns.*offset int64, bytes int64"),
        ("builtins:len", "'list_iterator' has no len"),
        (f"{DOUBLES}:none_such", r"MISSING_DEPENDENCY\].*none_such.*installed on the driver"),
        ("no.such.module:function", "No module named 'no'"),
        (f"{DOUBLES}:NO_FUNCTION", "which is not a function"),
    ],
)
def test_what_does_not_work_is_said(path: str, text: str) -> None:
    with pytest.raises((ConnectorError, TypeError), match=text):
        list(transformed(path, iter(records()), SCHEMA))


def test_methods_of_classes_are_found() -> None:
    assert load_function("builtins:dict.fromkeys") == dict.fromkeys


@pytest.mark.parametrize("path", ["function", "a.b", "a:b:c", ":f", "m:", "a b:c", "1a:b", "a:b()"])
def test_a_path_must_be_one(path: str) -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "transform": path}
    with pytest.raises(ConnectorError, match=r"option transform .*package\.module:function"):
        parse_source_options(given)


def test_a_function_of_the_job_itself_travels_as_its_code() -> None:
    factor = 3

    def triple(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), factor)], ["a"])

    value = pickled(triple)
    assert is_function(value)
    assert "<lambda>" not in pickled(lambda batches: batches)
    [batch] = transformed(value, iter([BATCH]), BATCH.schema)
    assert batch.column(0).to_pylist() == [3, 6]


def test_what_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def held(batches: Iterator[Any]) -> Iterator[Any]:
        with lock:
            yield from batches

    with pytest.raises(ConnectorError, match="function held cannot be pickled"):
        pickled(held)
    large = random.Random(1).randbytes(4 << 20)
    with pytest.raises(ConnectorError, match="takes 5 MiB"):
        pickled(lambda batches: (batches, large))
    with pytest.raises(ConnectorError, match="is not a function"):
        pickled(3)  # type: ignore[arg-type]


def test_another_python_or_a_damaged_value() -> None:
    value = pickled(lambda batches: batches)
    _, version, name, text = value.split(":")
    assert version == ".".join(map(str, sys.version_info[:2]))
    with pytest.raises(ConnectorError, match=rf"function {name} was pickled by Python 2\.7"):
        load_function(f"pickled:2.7:{name}:{text}")
    with pytest.raises(ConnectorError, match="is damaged"):
        load_function(f"pickled:{version}:{name}:{text[:20]}")
    assert not is_function("pickled:x")


def test_an_error_names_the_function_and_not_its_code() -> None:
    def nothing(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    other = pa.schema([("b", pa.int64())])
    with pytest.raises(ConnectorError, match=r"What nothing \(the option transform\) returns"):
        list(transformed(pickled(nothing), iter([BATCH]), other))
