"""The options that turn bytes into columns."""

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.decode_options import (
    DecodeOptions,
    FieldFormat,
    parse_decoding,
    parse_plain_format,
)
from pyspark_ottla.options.values import OptionReader

REGISTRY = {"schema.registry.url": "http://h"}


def parse(topic: str | None = "orders", **given: str) -> DecodeOptions:
    named = {name.replace("_", "."): value for name, value in given.items()}
    return parse_decoding(OptionReader(named), topic)


def test_without_a_format_nothing_is_decoded() -> None:
    for given in ({}, {"value_format": "raw"}, {"valueFormat": "confluent-strip"}):
        assert parse(**given).fields == []
    assert not parse().is_permissive


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"value.format": "raw"}, "binary"),
        ({"value.format": "string"}, "string"),
        ({"valueFormat": "confluent-strip"}, "confluent-strip"),
        ({"valueFormat": "avro"}, "binary"),
    ],
)
def test_two_spellings_of_one_option(given: dict[str, str], plain: str) -> None:
    assert parse_plain_format(OptionReader(given), "value") == plain


def test_the_subject_is_that_of_the_topic() -> None:
    found = parse(key_format="avro", value_format="JSON", mode="PERMISSIVE", **REGISTRY)
    assert found.key == FieldFormat("key", "avro", subject="orders-key", framed=True)
    assert found.value == FieldFormat("value", "json", subject="orders-value", framed=True)
    assert found.is_permissive
    assert parse(None, value_format="avro", value_schema_id="3", **REGISTRY).value == FieldFormat(
        "value", "avro", schema_id=3, framed=True
    )


def test_an_inline_schema() -> None:
    assert parse(value_format="protobuf", value_schema="x", value_message="a.B").value == (
        FieldFormat("value", "protobuf", "x", "a.B")
    )
    both = parse(value_format="avro", value_schema="x", value_framing="none", **REGISTRY).value
    assert both == FieldFormat("value", "avro", "x")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"value_format": "xml"}, "Expected one of binary, string, confluent-strip, raw, json"),
        ({"key_format": "confluent-strip"}, "Expected one of binary, string, raw, json"),
        ({"value_format": "json", "valueFormat": "json"}, "are the same option"),
        ({"value_format": "avro"}, "Set value.schema or schema.registry.url"),
        ({"value_schema": "x"}, "value.schema is set, but value.format is binary"),
        ({"value_format": "json", "value_message": "a.B"}, "Only Protobuf has messages"),
        ({"value_format": "avro", "value_subject": "x"}, "schema.registry.url is not set"),
        (
            {"value_format": "avro", "value_schema": "x", "value_subject": "y", **REGISTRY},
            "value.schema is set, too",
        ),
        ({"mode": "permissive"}, "neither the key nor the value is decoded"),
        ({"value_format": "json", "mode": "lenient"}, "failfast, dropmalformed, permissive"),
    ],
)
def test_mistakes(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        parse(**given)
    assert text in str(raised.value)


def test_several_topics_have_no_subject() -> None:
    with pytest.raises(ConnectorError, match="Several topics are read"):
        parse(None, value_format="avro", **REGISTRY)
