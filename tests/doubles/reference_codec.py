"""The wire format in the slowest and plainest way: straight from a definition, value by value.

It shares nothing with the compiled codecs but `ottla.protocol.schema`. A struct is a dictionary of
its fields (all of them; those that a version does not carry have their default), an unknown tagged
field stands under "unknown_tagged_fields". `to_values` turns a message into such a dictionary.
"""

import struct
from typing import Any

from ottla.protocol.message import Struct
from ottla.protocol.schema import NO_VERSIONS, PRIMITIVES, Field, MessageSchema

Values = dict[str, Any]

FORMATS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
}


class WrongBytesError(ValueError):
    """The bytes are not the message, or the values do not fit the version."""


class ReferenceCodec:
    """Encodes and decodes one version of one message."""

    def __init__(self, message: MessageSchema, version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = version in message.flexible_versions

    def encode(self, values: Values) -> bytes:
        return self._encode_struct(self.message.fields, values)

    def decode(self, data: bytes) -> Values:
        """The values; raises unless `data` is exactly one message."""
        reader = Reader(data)
        values = self._decode_struct(self.message.fields, reader)
        if reader.left():
            raise WrongBytesError(f"{reader.left()} bytes are left over")
        return values

    # Which fields, in which form

    def present(self, field: Field) -> bool:
        return self.version in field.versions

    def tagged(self, field: Field) -> bool:
        return self.present(field) and self.version in field.tag_versions

    def plain(self, field: Field) -> bool:
        return self.present(field) and not self.tagged(field)

    def compact(self, field: Field) -> bool:
        return self.flexible and field.compact

    def nullable(self, field: Field) -> bool:
        return self.version in field.null_versions

    def fields_of(self, type_name: str) -> tuple[Field, ...]:
        return self.message.structs[type_name].fields

    def default(self, field: Field) -> Any:
        none_means_absent = field.is_struct and field.tag >= 0 and not field.null_versions.last
        if field.null_default or field.type == "records" or none_means_absent:
            return None
        if field.is_array:
            return []
        if field.is_struct:
            return self.defaults(self.fields_of(field.type))
        if field.default is not None:
            return field.default
        zero = {"string": "", "bytes": b"", "uuid": bytes(16), "bool": False, "float64": 0.0}
        return zero.get(field.type, 0)

    def defaults(self, fields: tuple[Field, ...]) -> Values:
        values: Values = {field.name: self.default(field) for field in fields}
        if self.message.flexible_versions != NO_VERSIONS:
            values["unknown_tagged_fields"] = None
        return values

    # Encoding

    def _encode_struct(self, fields: tuple[Field, ...], values: Values) -> bytes:
        out = b""
        for field in fields:
            value = values[field.name]
            if self.plain(field):
                out += self._encode_field(field, value)
            elif not self.present(field) and not field.ignorable and value != self.default(field):
                raise WrongBytesError(f"{field.name} cannot be carried")
        unknown = values.get("unknown_tagged_fields") or {}
        if not self.flexible:
            if unknown:
                raise WrongBytesError("tagged fields cannot be carried")
            return out
        section = dict(unknown)
        for field in fields:
            if self.tagged(field) and not self._is_default(field, values[field.name]):
                if field.tag in section:
                    raise WrongBytesError(f"tag {field.tag} twice")
                section[field.tag] = self._encode_field(field, values[field.name])
        out += unsigned_varint(len(section))
        for tag in sorted(section):
            out += unsigned_varint(tag) + unsigned_varint(len(section[tag])) + section[tag]
        return out

    def _is_default(self, field: Field, value: Any) -> bool:
        if value is not None and field.is_struct:
            return bool(value == self.defaults(self.fields_of(field.type)))
        return bool(value == self.default(field))

    def _encode_field(self, field: Field, value: Any) -> bytes:
        if field.is_array:
            head = self._encode_length(field, "array", None if value is None else len(value))
            elements = [self._encode_value(field, field.element_type, e) for e in value or ()]
            return head + b"".join(elements)
        if field.is_struct and self.nullable(field):
            if value is None:
                return b"\xff" if field.tag < 0 else b"\x00"
            return b"\x01" + self._encode_value(field, field.type, value)
        return self._encode_value(field, field.type, value)

    def _encode_value(self, field: Field, type_name: str, value: Any) -> bytes:
        if type_name not in PRIMITIVES:
            return self._encode_struct(self.fields_of(type_name), value)
        if type_name == "bool":
            return b"\x01" if value else b"\x00"
        if type_name == "uuid":
            if len(value) != 16:
                raise WrongBytesError("a uuid has 16 bytes")
            return bytes(value)
        if type_name in FORMATS:
            return struct.pack(FORMATS[type_name], value)
        if value is None:
            return self._encode_length(field, type_name, None)
        data = value.encode() if type_name == "string" else bytes(value)
        return self._encode_length(field, type_name, len(data)) + data

    def _encode_length(self, field: Field, type_name: str, length: int | None) -> bytes:
        if length is None and not self.nullable(field):
            raise WrongBytesError(f"{field.name} is null")
        if type_name == "string" and length is not None and length > 32767:
            raise WrongBytesError(f"{field.name} is too long")
        if self.compact(field):
            return unsigned_varint(0 if length is None else length + 1)
        width = 2 if type_name == "string" else 4
        return (-1 if length is None else length).to_bytes(width, "big", signed=True)

    # Decoding

    def _decode_struct(self, fields: tuple[Field, ...], reader: "Reader") -> Values:
        values = self.defaults(fields)
        for field in fields:
            if self.plain(field):
                values[field.name] = self._decode_field(field, reader)
        if not self.flexible:
            return values
        tags = {field.tag: field for field in fields if self.tagged(field)}
        for _ in range(reader.unsigned_varint()):
            tag = reader.unsigned_varint()
            data = reader.take(reader.unsigned_varint())
            if tag not in tags:
                values["unknown_tagged_fields"] = values["unknown_tagged_fields"] or {}
                values["unknown_tagged_fields"][tag] = data
                continue
            inner = Reader(data)
            values[tags[tag].name] = self._decode_field(tags[tag], inner)
            if inner.left():
                raise WrongBytesError(f"tagged field {tag} is longer than its value")
        return values

    def _decode_field(self, field: Field, reader: "Reader") -> Any:
        if field.is_array:
            count = self._decode_length(field, "array", reader)
            if count is None:
                return None
            return [self._decode_value(field, field.element_type, reader) for _ in range(count)]
        if field.is_struct and self.nullable(field) and reader.signed(1) < (field.tag >= 0):
            return None
        return self._decode_value(field, field.type, reader)

    def _decode_value(self, field: Field, type_name: str, reader: "Reader") -> Any:
        if type_name not in PRIMITIVES:
            return self._decode_struct(self.fields_of(type_name), reader)
        if type_name == "bool":
            return reader.take(1) != b"\x00"
        if type_name == "uuid":
            return reader.take(16)
        if type_name in FORMATS:
            return struct.unpack(FORMATS[type_name], reader.take(PRIMITIVES[type_name]))[0]
        length = self._decode_length(field, type_name, reader)
        if length is None:
            return None
        data = reader.take(length)
        return data.decode("utf-8") if type_name == "string" else data

    def _decode_length(self, field: Field, type_name: str, reader: "Reader") -> int | None:
        if self.compact(field):
            length = reader.unsigned_varint() - 1
            if type_name == "string" and length > 32767:
                raise WrongBytesError(f"{field.name} is too long")
        else:
            length = reader.signed(2 if type_name == "string" else 4)
        if length == -1 and self.nullable(field) and field.type[0] != "[":
            return None
        if length == -1 and self.nullable(field) and type_name == "array":
            return None
        if length < 0:
            raise WrongBytesError(f"{field.name} has length {length}")
        return length


class Reader:
    """Takes bytes off the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, count: int) -> bytes:
        if count > self.left():
            raise WrongBytesError(f"{count} bytes wanted, {self.left()} left")
        self.position += count
        return self.data[self.position - count : self.position]

    def signed(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big", signed=True)

    def unsigned_varint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise WrongBytesError("a varint of more than five bytes")
        if value > 0xFFFF_FFFF:
            raise WrongBytesError("a varint of more than 32 bits")
        return value


def unsigned_varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def to_values(message: Struct) -> Values:
    """The dictionary form of a message."""
    return {name: _plain(getattr(message, name)) for name in message.__slots__}


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return to_values(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def to_message(cls: type[Struct], schema: MessageSchema, values: Values) -> Struct:
    """The object form of a dictionary."""
    module = __import__(cls.__module__, fromlist=["x"])

    def build(target: type[Struct], fields: tuple[Field, ...], values: Values) -> Struct:
        arguments = dict(values)
        for field in fields:
            if field.element_type in PRIMITIVES or arguments[field.name] is None:
                continue
            name = field.element_type
            inner = getattr(module, name, None) or getattr(module, schema.name + name)
            nested = schema.structs[name].fields
            value = arguments[field.name]
            arguments[field.name] = (
                [build(inner, nested, item) for item in value]
                if field.is_array
                else build(inner, nested, value)
            )
        return target(**arguments)

    return build(cls, schema.fields, values)
