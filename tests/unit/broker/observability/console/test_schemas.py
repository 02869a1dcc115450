"""Schemas and data that would cost more than their bytes are not decoded."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.observability.console import schemas
from ottla.broker.observability.console.schemas import (
    SchemaRegistry,
    Shape,
    UnusableSchema,
    decoded,
    parsed,
    shape_of,
)
from ottla.broker.runtime.tasks import WorkerPool


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def response(schema: Any) -> bytes:
    return json.dumps({"schema": json.dumps(schema)}).encode()


def shape(schema: Any) -> Shape:
    return shape_of(fastavro.parse_schema(schema))


def test_shapes() -> None:
    assert shape("long") == Shape(1, 1, 0)
    assert shape(record("a", "null", "double", ["null", "string"])) == Shape(9, 5, 0)
    assert shape({"type": "array", "items": "double"}) == Shape(1, 1, 0.25)
    assert shape({"type": "map", "values": "null"}) == Shape(1, 1, 2)
    named = record("b", {"type": "enum", "name": "E", "symbols": ["X"]}, "E")
    assert shape(named) == Shape(2, 3, 0)
    assert shape({"type": "fixed", "name": "F", "size": 16}) == Shape(16, 1, 0)


def doubling(depth: int) -> Any:
    """A record of 2 ** depth values, without bytes."""
    inner: Any = record("r0", "null")
    for number in range(1, depth):
        inner = record(f"r{number}", inner, f"r{number - 1}")
    return inner


def named_field(name: str) -> Any:
    """A record of one byte, whose JSON has the name of its field."""
    return {"type": "record", "name": "item", "fields": [{"name": name, "type": "int"}]}


def nested(depth: int) -> Any:
    found: Any = "int"
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return found


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "items": "null"}, "items without bytes"),
        ({"type": "array", "items": record("empty")}, "items without bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "without bytes"),
        (record("list", ["null", "list"]), "recursive"),
        (doubling(12), "more than 1000 fields"),
        (nested(100), "deeper"),
        ({"type": "array", "items": named_field("f" * 201)}, "names of more than 200"),
        ({"type": "enum", "name": "E", "symbols": ["S" * 201]}, "names of more than 200"),
        ({"type": "nonsense"}, "not an Avro schema"),
        (None, "not an Avro schema"),
    ],
)
def test_a_schema_that_makes_much_of_little_is_not_used(schema: Any, said: str) -> None:
    with pytest.raises(UnusableSchema, match=said):
        parsed(response(schema))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"schema": 1}', b"[" * 100_000])
def test_a_response_that_is_no_schema(body: bytes) -> None:
    with pytest.raises(UnusableSchema, match="not an Avro schema"):
        parsed(body)


def test_data_with_too_many_values_is_not_decoded() -> None:
    wide = record("item", *["null"] * 500, "int")
    schema = parsed(response({"type": "array", "items": wide}))
    with pytest.raises(UnusableSchema, match="too many values"):
        decoded(schema, bytes(schemas.MAX_DECODED_VALUES // 500 + 1))
    assert decoded(schema, b"\x00") == "[]"


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x01\x01", b"\xff" * 11, b"\x00\x00"])
def test_data_of_another_schema(data: bytes) -> None:
    schema = parsed(response({"type": "array", "items": "string"}))
    with pytest.raises(UnusableSchema, match="a record"):
        decoded(schema, data)


def test_without_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(schemas.importlib, "import_module", missing)
    with pytest.raises(UnusableSchema, match="pip install"):
        parsed(response("int"))


@pytest.mark.parametrize(
    "url", ["http://u:secret@registry:8081", "u:secret@registry", "http://u:secret@[::1"]
)
def test_a_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SchemaRegistry(url, None, WorkerPool(threads=1))
    assert "secret" not in str(caught.value)
    assert "user.info" in str(caught.value)
