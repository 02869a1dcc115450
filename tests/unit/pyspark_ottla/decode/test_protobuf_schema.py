"""Protobuf schemas as text and as descriptors, and as Spark types."""

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from pyspark_ottla.decode import protobuf_schema
from pyspark_ottla.errors import ConnectorError
from tests.doubles.protobuf_files import ADDRESS, COUNTRY, ORDER, ORDER_TYPE, compiled


def spark(files: tuple[bytes, ...] | list[bytes], name: str = "") -> str:
    return protobuf_schema.spark_type(protobuf_schema.message_of(files, name)).simpleString()


def test_types() -> None:
    assert spark(compiled(ORDER)) == ORDER_TYPE
    assert spark(compiled(ORDER), "shop.Refund") == "struct<id:bigint>"
    assert spark(compiled(ORDER), "shop.Order.Line") == "struct<item:string,count:bigint>"


def test_an_inline_schema_is_text_or_a_descriptor_set() -> None:
    whole = FileDescriptorSet(file=[FileDescriptorProto.FromString(f) for f in compiled(ORDER)])
    encoded = base64.b64encode(whole.SerializeToString()).decode()
    assert spark(protobuf_schema.parse_inline(ORDER)) == ORDER_TYPE
    assert spark(protobuf_schema.parse_inline(encoded)) == ORDER_TYPE


def test_a_registered_schema_is_text_or_descriptors() -> None:
    expected = "struct<street:string,country:struct<code:string>>"
    references = (("country.proto", COUNTRY),)
    assert spark(protobuf_schema.parse_registered(ADDRESS, references)) == expected
    files = [base64.b64encode(file).decode() for file in compiled(ADDRESS, references)]
    registered = protobuf_schema.parse_registered(files[-1], (("country.proto", files[0]),))
    assert spark(registered) == expected
    # The well-known types are not among what a registry has.
    order = base64.b64encode(compiled(ORDER)[-1]).decode()
    assert spark(protobuf_schema.parse_registered(order, ())) == ORDER_TYPE


def test_an_import_for_options_alone_is_left_out() -> None:
    file = FileDescriptorProto.FromString(compiled(COUNTRY)[-1])
    file.dependency.append("confluent/meta.proto")
    assert spark([file.SerializeToString()]) == "struct<code:string>"


def test_messages_by_their_indexes() -> None:
    files = compiled(ORDER)
    assert protobuf_schema.name_of(files, (0,)) == "shop.Order"
    assert protobuf_schema.name_of(files, (0, 0)) == "shop.Order.Line"
    assert protobuf_schema.name_of(files, (1,)) == "shop.Refund"
    for indexes in ((2,), (1, 0), (-1,)):
        with pytest.raises(IndexError):
            protobuf_schema.name_of(files, indexes)


RECURSIVE = 'syntax = "proto3"; message Node { repeated Node children = 1; }'
MISSING = FileDescriptorProto(name="a.proto", dependency=["b.proto"])


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("syntax = oops;", "", "cannot be compiled: "),
        ('syntax = "proto3"; import "b.proto";', "", "b.proto"),
        ("AAAA", "", "no set of file descriptors"),
        ('syntax = "proto3";', "", "has no message"),
        (ORDER, "shop.Cart", "has no message shop.Cart. Its messages are: shop.Order, shop.Refund"),
        (RECURSIVE, "", "has the message Node within itself"),
    ],
)
def test_rejected_schemas(text: str, name: str, words: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        spark(protobuf_schema.parse_inline(text), name)
    assert words in str(raised.value)


def test_a_missing_import_is_named() -> None:
    with pytest.raises(ConnectorError, match=r"imports b\.proto, which did not come with it"):
        spark([MISSING.SerializeToString()])
    with pytest.raises(ConnectorError, match=r"imports \.\./evil\.proto, which is outside"):
        protobuf_schema.compile_text(ORDER, [("../evil.proto", "")])


def test_without_a_compiler_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        protobuf_schema, "_PROTOC", f"import sys; sys.exit({protobuf_schema.NO_COMPILER})"
    )
    with pytest.raises(ConnectorError, match="Install the package grpcio-tools"):
        protobuf_schema.parse_inline(ORDER)
