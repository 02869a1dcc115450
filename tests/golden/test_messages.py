"""What Kafka's own classes encode, we decode to the same values and encode to the same bytes."""

import gzip
import importlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol import codec
from ottla.protocol.generate import load_definitions
from ottla.protocol.message import Message
from ottla.protocol.schema import Field, MessageSchema
from ottla.protocol.uuids import uuid_from_string
from tests.doubles.reference_codec import ReferenceCodec, Values, to_message, to_values

HERE = Path(__file__).parent
FILES = tuple(
    HERE / f"messages{suffix}.jsonl.gz" for suffix in ("", "_4", "_share", "_transactions")
)
SCHEMAS = {
    message.name: (path.replace("/", "."), message)
    for path, messages in load_definitions().items()
    for message in messages
}


def read_vectors() -> dict[str, list[dict[str, Any]]]:
    vectors: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in FILES:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                vector = json.loads(line)
                vectors[vector["name"]].append(vector)
    return vectors


VECTORS = read_vectors()


class JsonReader:
    """Turns the JSON form of values into the dictionary form of the reference codec."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        self.codec = ReferenceCodec(schema, version)

    def struct(self, fields: tuple[Field, ...], values: dict[str, Any]) -> Values:
        result = self.codec.defaults(fields)
        given = values.keys() - {"unknown_tagged_fields"}
        later = {field.name for field in fields if self.is_later(field)}
        assert given - result.keys() == set()
        assert result.keys() - given - {"unknown_tagged_fields"} <= later
        for field in fields:
            if field.name not in values:
                continue  # the default
            result[field.name] = self.field(field, values[field.name])
        if "unknown_tagged_fields" in values:
            unknown = values["unknown_tagged_fields"]
            result["unknown_tagged_fields"] = {
                int(tag): bytes.fromhex(data) for tag, data in unknown.items()
            }
        return result

    def is_later(self, field: Field) -> bool:
        """Whether classes of an earlier Kafka may lack the field: it is of a later version, or a
        tagged one, which a record gets without a new version."""
        return self.codec.version < field.versions.first or field.tag >= 0

    def field(self, field: Field, value: Any) -> Any:
        if value is None:
            return None
        if field.is_array:
            return [self.value(field.element_type, item) for item in value]
        result = self.value(field.type, value)
        if field.none_when_absent:
            # Java has a struct of defaults where we have None.
            absent = self.codec.defaults(self.codec.fields_of(field.type))
            return None if result == absent else result
        return result

    def value(self, type_name: str, value: Any) -> Any:
        if type_name[0].isupper():
            return self.struct(self.codec.fields_of(type_name), value)
        if type_name in ("bytes", "records"):
            return bytes.fromhex(value)
        if type_name == "uuid":
            return uuid_from_string(value)
        return value


def message_class(name: str) -> type[Message]:
    module = importlib.import_module(f"ottla.protocol.messages.{SCHEMAS[name][0]}")
    found: type[Message] = getattr(module, name)
    return found


def test_every_version_of_every_message_has_vectors() -> None:
    wanted = {
        (name, version)
        for name, (_, schema) in SCHEMAS.items()
        for version in range(schema.versions.first, schema.versions.last + 1)
    }
    assert wanted == {(name, v["version"]) for name, vectors in VECTORS.items() for v in vectors}


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_the_reference_codec_agrees_with_java(name: str) -> None:
    schema = SCHEMAS[name][1]
    for vector in VECTORS[name]:
        data, version = bytes.fromhex(vector["bytes"]), vector["version"]
        reference = ReferenceCodec(schema, version)
        values = JsonReader(schema, version).struct(schema.fields, vector["values"])
        assert reference.decode(data) == values, (name, version, vector["variant"])
        assert reference.encode(values) == data, (name, version, vector["variant"])


@pytest.mark.parametrize(
    "name", sorted(name for name, (_, schema) in SCHEMAS.items() if schema.kind != "header")
)
def test_the_compiled_codec_agrees_with_java(name: str) -> None:
    schema = SCHEMAS[name][1]
    cls = message_class(name)
    for vector in VECTORS[name]:
        data, version = bytes.fromhex(vector["bytes"]), vector["version"]
        values = JsonReader(schema, version).struct(schema.fields, vector["values"])
        message, position = codec.decoder(cls, version)(data, 0)
        assert position == len(data)
        assert to_values(message) == values, (name, version, vector["variant"])
        assert message == to_message(cls, schema, values)
        assert codec.encoder(cls, version)(message) == data, (name, version, vector["variant"])


def test_a_new_object_has_the_defaults_of_java() -> None:
    """The sparse vector of the lowest version shows the default of what that version lacks."""
    for name, vectors in VECTORS.items():
        schema = SCHEMAS[name][1]
        if schema.kind == "header":
            continue
        new = to_values(message_class(name)())
        for vector in vectors:
            if vector["variant"] != "sparse":
                continue
            version = vector["version"]
            values = JsonReader(schema, version).struct(schema.fields, vector["values"])
            for field in schema.fields:
                if version not in field.versions:
                    assert new[field.name] == values[field.name], (name, field.name)
