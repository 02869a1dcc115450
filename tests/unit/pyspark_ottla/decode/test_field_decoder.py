"""Values with a schema id in front: each is read with the schema that has written it."""

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pyspark_ottla.decode import field_decoder
from pyspark_ottla.decode.bad_record import BadRecordError
from tests.doubles.decoded_columns import decode
from tests.doubles.protobuf_files import ADDRESS, COUNTRY, ORDER, compiled, new_message
from tests.doubles.schema_registry import SchemaRegistry, framed, serving

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    **OLD,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with serving() as running:
        yield running


def avro(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    return [row["_corrupt"]["reason"] for row in rows if row["_corrupt"] is not None]


def test_old_and_new_avro_in_the_latest_schema(server: SchemaRegistry) -> None:
    old = server.register("orders-value", json.dumps(OLD))
    new = server.register("orders-value", json.dumps(NEW))
    values: list[bytes | None] = [
        framed(old, avro(OLD, {"id": 1})),
        framed(new, avro(NEW, {"id": 1 << 40, "note": "x"})),
        None,
    ]
    rows = decode(values, value_format="avro", schema_registry_url=server.url)
    assert [row["value"] for row in rows] == [
        {"id": 1, "note": None},
        {"id": 1 << 40, "note": "x"},
        None,
    ]
    # A query that is pinned to the old schema reads the new values with it.
    rows = decode(
        values, value_format="avro", schema_registry_url=server.url, value_schema_version="1",
        mode="permissive",
    )  # fmt: skip
    assert rows[0]["value"] == {"id": 1}
    assert "has schema id 2, which cannot" in reasons(rows)[0] or "is no Avro" in reasons(rows)[0]


def test_ids_without_a_schema(server: SchemaRegistry) -> None:
    known = server.register("orders-value", json.dumps(OLD))
    text = server.register("other", '{"type":"object"}', "JSON")
    rows = decode(
        [
            framed(99, b""),
            framed(99, b""),
            framed(text, b"{}"),
            b"\1\0\0\0\1x",
            b"\0\0",
            framed(known, avro(OLD, {"id": 5})),
        ],
        value_format="avro",
        schema_registry_url=server.url,
        mode="permissive",
    )
    unknown = f"the value has schema id 99, which the schema registry {server.url} does not know"
    assert reasons(rows) == [
        unknown,
        unknown,
        "the value has schema id 2, which is a schema of json and not of avro",
        "the value has no schema id in front",
        "the value has no schema id in front",
    ]
    assert rows[-1]["value"] == {"id": 5}
    assert server.requests.count("/schemas/ids/99") == 1


def test_look_ups_of_unknown_ids_are_bounded(server: SchemaRegistry) -> None:
    server.register("orders-value", json.dumps(OLD))
    values: list[bytes | None] = [framed(1000 + number, b"") for number in range(100)]
    rows = decode(values, value_format="avro", schema_registry_url=server.url, mode="permissive")
    assert len(reasons(rows)) == 100
    looked_up = [path for path in server.requests if path.startswith("/schemas/ids/10")]
    assert len(looked_up) == field_decoder.UNKNOWN_IDS_MAX


def test_a_schema_that_cannot_be_read_makes_its_records_bad(server: SchemaRegistry) -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    other = {**OLD, "fields": [{"name": "id", "type": millis}]}
    latest = {
        **OLD,
        "fields": [{"name": "id", "type": {**millis, "logicalType": "timestamp-micros"}}],
    }
    old = server.register("orders-value", json.dumps(other))
    server.register("orders-value", json.dumps(latest))
    rows = decode(
        [framed(old, avro(OLD, {"id": 1}))],
        value_format="avro",
        schema_registry_url=server.url,
        mode="permissive",
    )
    assert reasons(rows) == [
        "the value has schema id 1, which cannot be read as the schema of the query: The schemas "
        "differ: id is timestamp-millis there and timestamp-micros in the query"
    ]


def test_an_inline_schema_without_a_registry_ignores_the_id() -> None:
    rows = decode(
        [framed(7, avro(OLD, {"id": 1}))],
        value_format="avro",
        value_schema=OLD,
        value_framing="confluent",
    )
    assert rows[0]["value"] == {"id": 1}


def test_json_with_an_id_in_front(server: SchemaRegistry) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    schema_id = server.register("orders-value", json.dumps(schema), "JSON")
    rows = decode(
        [framed(schema_id, b'{"id":3}'), b'{"id":4}'],
        value_format="json",
        schema_registry_url=server.url,
        mode="permissive",
    )
    assert [row["value"] for row in rows] == [{"id": 3}, None]
    assert reasons(rows) == ["the value has no schema id in front"]


@pytest.mark.parametrize("has_serialized", [True, False])
def test_protobuf_with_indexes_and_references(has_serialized: bool, server: SchemaRegistry) -> None:
    references = (("country.proto", COUNTRY),)
    country, address = compiled(ADDRESS, references)
    server.has_serialized = has_serialized
    server.register("country", COUNTRY, "PROTOBUF", serialized=country)
    imported = [{"name": "country.proto", "subject": "country", "version": 1}]
    schema_id = server.register("orders-value", ADDRESS, "PROTOBUF", imported, address)
    message = new_message(ADDRESS, references=references)
    message.street, message.country.code = "Main", "FI"
    rows = decode(
        [framed(schema_id, message.SerializeToString(), b"\0")],
        value_format="protobuf",
        schema_registry_url=server.url,
    )
    assert rows[0]["value"] == {"street": "Main", "country": {"code": "FI"}}


def test_another_message_of_the_file_is_a_bad_record(server: SchemaRegistry) -> None:
    descriptor = compiled(ORDER)[-1]
    schema_id = server.register("orders-value", ORDER, "PROTOBUF", serialized=descriptor)
    refund = new_message(ORDER, "shop.Refund")
    refund.id = 8
    content = refund.SerializeToString()
    values: list[bytes | None] = [
        framed(schema_id, content, b"\2\2"),
        framed(schema_id, b"", b"\0"),
        framed(schema_id, b"", b"\2\6"),
        framed(99, b"", b"\0"),
        framed(schema_id, b""),
    ]
    rows = decode(
        values,
        value_format="protobuf",
        schema_registry_url=server.url,
        value_message="shop.Refund",
        mode="permissive",
    )
    assert [row["value"] for row in rows] == [{"id": 8}, None, None, None, None]
    assert reasons(rows) == [
        "the value is a message shop.Order, and the query reads shop.Refund",
        "the value names a message [3] that schema id 1 does not have",
        f"the value has schema id 99, which the schema registry {server.url} does not know",
        "the value ends within the indexes that name its message",
    ]


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\0"])
def test_values_without_an_id(data: bytes) -> None:
    with pytest.raises(BadRecordError, match="no schema id"):
        field_decoder.split_id(data)
