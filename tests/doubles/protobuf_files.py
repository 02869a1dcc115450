"""A Protobuf schema as text and as descriptors, compiled once by protoc."""

from __future__ import annotations

from functools import cache
from typing import Any

from pyspark_ottla.decode import protobuf_schema

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";

message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { string item = 1; uint32 count = 2; }
  int64 id = 1;
  optional int32 discount = 2;
  State state = 3;
  repeated Line lines = 4;
  map<string, Line> by_name = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.StringValue note = 7;
  google.protobuf.Struct more = 8;
  oneof payment { string card = 9; bool cash = 10; }
  bytes raw = 11;
  uint64 large = 12;
  double ratio = 13;
  repeated int32 codes = 14;
}
message Refund { int64 id = 1; }
"""
ORDER_TYPE = (
    "struct<id:bigint,discount:int,state:string,lines:array<struct<item:string,count:bigint>>,"
    "by_name:map<string,struct<item:string,count:bigint>>,at:timestamp,note:string,more:string,"
    "card:string,cash:boolean,raw:binary,large:decimal(20,0),ratio:double,codes:array<int>>"
)
# Refers to another file, as registered schemas do.
COUNTRY = 'syntax = "proto3"; package geo; message Country { string code = 1; }'
ADDRESS = (
    'syntax = "proto3"; package geo; import "country.proto"; '
    "message Address { string street = 1; Country country = 2; }"
)


@cache
def compiled(text: str, references: tuple[tuple[str, str], ...] = ()) -> tuple[bytes, ...]:
    return tuple(protobuf_schema.compile_text(text, references))


def new_message(text: str, name: str = "", references: tuple[tuple[str, str], ...] = ()) -> Any:
    """An empty message of the schema."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(protobuf_schema.message_of(compiled(text, references), name))()
