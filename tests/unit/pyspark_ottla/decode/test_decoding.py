"""Bad records by mode, and what of a row is kept."""

import logging

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ottla.decode.decoding import LOGGED_MAX
from pyspark_ottla.errors import ConnectorError
from tests.doubles.decoded_columns import decode

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}
VALUES: list[bytes | None] = [b'{"id":1}', b"oops", None, b'{"id":"x"}', b"{}"]
KEY_SCHEMA = '"string"'


def test_failfast_names_partition_and_offset() -> None:
    with pytest.raises(ConnectorError) as raised:
        decode(VALUES, value_format="json", value_schema=SCHEMA)
    assert str(raised.value) == (
        "[DECODE_FAILED] The value (json) of the record at offset 101 of orders-0 is no JSON: "
        "Expecting value: line 1 column 1 (char 0). Set mode to permissive to keep such records "
        "with the column _corrupt, or to dropmalformed to leave them out."
    )


def test_dropmalformed_leaves_out_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        rows = decode(VALUES, value_format="json", value_schema=SCHEMA, mode="dropmalformed")
    assert [row["offset"] for row in rows] == [100, 102, 104]
    assert [row["value"] for row in rows] == [{"id": 1}, None, {"id": None}]
    assert caplog.messages[-1] == ("Dropped 2 of 5 records of orders-0 that could not be decoded")
    assert len(caplog.messages) == 3


def test_the_log_has_few_reasons_and_the_whole_count(caplog: pytest.LogCaptureFixture) -> None:
    values: list[bytes | None] = [b"x"] * 50
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        rows = decode(values, value_format="json", value_schema=SCHEMA, mode="dropmalformed")
    assert rows == []
    assert len(caplog.messages) == LOGGED_MAX + 1
    assert "Dropped 50 of 50" in caplog.messages[-1]


def test_permissive_keeps_the_bytes_and_the_reason() -> None:
    rows = decode(VALUES, value_format="json", value_schema=SCHEMA, mode="permissive")
    assert [row["value"] for row in rows] == [{"id": 1}, None, None, None, {"id": None}]
    assert [row["_corrupt"] for row in rows] == [
        None,
        {
            "reason": "the value is no JSON: Expecting value: line 1 column 1 (char 0)",
            "key": b"k1",
            "value": b"oops",
        },
        None,
        {
            "reason": "the value does not fit the columns: id is 'x' and not int64",
            "key": b"k3",
            "value": b'{"id":"x"}',
        },
        None,
    ]


def test_keys_are_decoded_too_and_the_value_stays() -> None:
    rows = decode(
        [b"\x02\x00", b"\x00"], key_format="json", key_schema="{}", mode="permissive",
        value_format="avro", value_schema={"type": "array", "items": "int"},
    )  # fmt: skip
    # The keys, k0 and k1, are no JSON.
    assert [row["key"] for row in rows] == [None, None]
    assert [row["value"] for row in rows] == [[0], []] or rows[0]["value"] is None
    assert all(row["_corrupt"]["reason"].startswith("the key is no JSON") for row in rows)


def test_a_schema_chooses_columns_and_fields() -> None:
    inner = StructType([StructField("b", StringType())])
    schema = StructType([StructField("offset", LongType()), StructField("value", inner)])
    avro = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
    }
    rows = decode([b"\x02\x04xy"], schema, value_format="avro", value_schema=avro)
    assert rows == [{"offset": 100, "value": {"b": "xy"}}]


def test_bad_records_need_no_column() -> None:
    schema = StructType([StructField("value", StructType([StructField("id", LongType())]))])
    rows = decode(VALUES, schema, value_format="json", value_schema=SCHEMA, mode="permissive")
    assert [row["value"] for row in rows] == [{"id": 1}, None, None, None, {"id": None}]
