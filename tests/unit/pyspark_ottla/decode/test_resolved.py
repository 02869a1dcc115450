"""What the driver finds out: schemas, pinned ids, and the errors before any task."""

import json
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql.types import StructType

from pyspark_ottla.decode.resolved import SCHEMA_ID, resolve_decoding
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.read.schema import row_schema
from tests.doubles.decoded_columns import options
from tests.doubles.schema_registry import SchemaRegistry, serving

FIRST = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "b", "type": "int", "default": 0}]}  # type: ignore[misc]
# ... values of several types in one dict


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with serving() as running:
        running.register("orders-value", json.dumps(FIRST))
        yield running


def planned(server: SchemaRegistry, **given: object) -> StructType:
    source = options(value_format="avro", schema_registry_url=server.url, **given)
    return row_schema(source, resolve_decoding(source.decode))


def test_a_query_keeps_the_schema_that_it_was_planned_with(server: SchemaRegistry) -> None:
    schema = planned(server)
    assert schema["value"].metadata == {SCHEMA_ID: 1}
    server.register("orders-value", json.dumps(SECOND))
    source = options(value_format="avro", schema_registry_url=server.url)
    later = resolve_decoding(source.decode, schema)
    assert row_schema(source, later) == schema
    assert planned(server)["value"].dataType.simpleString() == "struct<a:int,b:int>"
    assert planned(server, value_schema_version="1") == schema
    assert planned(server, value_schema_id="1") == schema
    assert planned(server, value_subject="orders-value", value_schema_version="1") == schema


def test_nothing_to_decode() -> None:
    assert resolve_decoding(options(value_format="string").decode) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"value_subject": "none"},
            "[UNKNOWN_SUBJECT] There is no subject none in the schema registry",
        ),
        (
            {"value_schema_version": "7"},
            "There is no subject orders-value version 7 in the schema registry",
        ),
        (
            {"value_schema_id": "9"},
            "[UNKNOWN_SCHEMA_ID] There is no schema id 9 in the schema registry",
        ),
        ({"value_format": "json"}, "is a schema of avro. Set value.format to avro"),
    ],
)
def test_schemas_that_are_not_there(
    given: dict[str, str], text: str, server: SchemaRegistry
) -> None:
    source = options(**{"value_format": "avro", "schema_registry_url": server.url} | given)
    with pytest.raises(ConnectorError) as raised:
        resolve_decoding(source.decode)
    assert text in str(raised.value)


@pytest.mark.parametrize(("chosen", "package"), [("avro", "fastavro"), ("protobuf", "protobuf")])
def test_a_missing_library_is_named(
    chosen: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("protobuf", "google.protobuf"), None)
    source = options(value_format=chosen, value_schema='"string"')
    with pytest.raises(ConnectorError) as raised:
        resolve_decoding(source.decode)
    assert f"[MISSING_DEPENDENCY] Decoding {chosen} needs the package {package}" in str(
        raised.value
    )


def test_json_without_a_schema_needs_columns() -> None:
    source = options(value_format="json")
    with pytest.raises(ConnectorError, match="nothing sets the columns"):
        row_schema(source, resolve_decoding(source.decode))
