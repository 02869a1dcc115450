"""What one version of a struct looks like: which fields it carries, in which form."""

from __future__ import annotations

import sys

from ottla.protocol.message import Struct
from ottla.protocol.schema import PRIMITIVES, Field, parse_field

#: struct-module codes of the types that have a fixed size.
FIXED_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}

_parsed: dict[type[Struct], tuple[Field, ...]] = {}


def fields_of(cls: type[Struct]) -> tuple[Field, ...]:
    """The parsed `FIELDS` of a generated class."""
    fields = _parsed.get(cls)
    if fields is None:
        fields = _parsed[cls] = tuple(parse_field(line) for line in cls.FIELDS)
    return fields


def struct_class(owner: type[Struct], name: str) -> type[Struct]:
    """The class that a field of `owner` names; it stands in the same module."""
    found = getattr(sys.modules[owner.__module__], name)
    assert isinstance(found, type)
    assert issubclass(found, Struct)
    return found


class Layout:
    """The fields of `cls` in `version`: in wire order, in the tagged section by ascending tag,
    and those that the version does not carry."""

    __slots__ = ("absent", "cls", "flexible", "has_unknown", "plain", "tagged", "version")

    def __init__(self, cls: type[Struct], version: int, *, flexible: bool) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.has_unknown = "unknown_tagged_fields" in cls.__slots__
        present = [field for field in fields_of(cls) if version in field.versions]
        self.absent = [field for field in fields_of(cls) if version not in field.versions]
        self.plain = [field for field in present if version not in field.tag_versions]
        self.tagged = sorted(
            (field for field in present if version in field.tag_versions),
            key=lambda field: field.tag,
        )

    def nested(self, field: Field) -> Layout:
        """The layout of the struct that `field` holds or is an array of."""
        return Layout(
            struct_class(self.cls, field.element_type), self.version, flexible=self.flexible
        )

    def compact(self, field: Field) -> bool:
        """Whether the lengths of `field` are varints."""
        return self.flexible and field.compact

    def nullable(self, field: Field) -> bool:
        """Whether `field` may be null in this version."""
        return self.version in field.null_versions

    def minimum_size(self) -> int:
        """The fewest bytes that such a struct takes."""
        size = sum(self._field_minimum(field) for field in self.plain)
        return size + 1 if self.flexible else size

    def element_minimum(self, field: Field) -> int:
        """The fewest bytes of one element of the array `field`."""
        name = field.element_type
        if name not in PRIMITIVES:
            minimum = self.nested(field).minimum_size()
            assert minimum > 0, f"an element of {field.name} may take no bytes at all"
            return minimum
        return PRIMITIVES[name] or self._length_size(field, name)

    def _field_minimum(self, field: Field) -> int:
        if field.is_array:
            return self._length_size(field, "array")
        if field.is_struct:
            return 1 if self.nullable(field) else self.nested(field).minimum_size()
        return PRIMITIVES[field.type] or self._length_size(field, field.type)

    def _length_size(self, field: Field, type_name: str) -> int:
        if self.compact(field):
            return 1
        return 2 if type_name == "string" else 4


def default_expression(field: Field, struct_name: str) -> str:
    """The default of `field` as source text; `struct_name` names its class in that source."""
    if field.null_default or field.type == "records" or field.none_when_absent:
        return "None"
    if field.is_array:
        return "[]"
    if field.is_struct:
        return f"{struct_name}()"
    if field.default is not None:
        return repr(field.default)
    zero = {"bool": "False", "float64": "0.0", "string": "''", "bytes": "b''", "uuid": "ZERO_UUID"}
    return zero.get(field.type, "0")
