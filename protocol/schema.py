"""The message definitions as data: what a field is and how a definition file reads.

A definition file describes one API (`api KEY NAME`, then a `request` and a `response`) or a few
stored messages (`message NAME`) or headers (`header NAME`). Each message opens with its version
range and its flexible versions (KIP-482); under it stands one line a field:

    NAME  TYPE  VERSIONS  [null VERSIONS] [default VALUE] [tag NUMBER VERSIONS] [ignorable]

TYPE is a primitive, a struct name, or either of them in brackets for an array. The fields of a
struct are indented under the field that uses it; a struct used twice stands in a `struct NAME`
block after the fields of its message. VERSIONS is `3`, `3-5` or `3+`.

Words after the versions:
- `null` the versions in which the field may be null on the wire;
- `default` the value when a version does not carry the field (else 0, "", False, no bytes, an
  empty array, the zero uuid, or a struct of defaults; records default to null);
- `tag` the field travels in the tagged section in those versions;
- `ignorable` a value that a version cannot carry is dropped instead of being an error;
- `not-compact` the field keeps its old encoding in flexible versions (only the client id of the
  request header).

This module parses text; it opens no file. `ottla.protocol.generate` reads the files and writes the
classes; `ottla.protocol.codec` compiles what the classes carry in `FIELDS`, which are lines of
this form.
"""

from __future__ import annotations

from typing import NamedTuple

#: The last version of an open range: versions are int16 on the wire.
LAST_VERSION = 32767

#: The primitive types, with the bytes a value takes; 0 where a length stands before the value.
PRIMITIVES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
    "string": 0,
    "bytes": 0,
    "records": 0,
}

DefaultValue = int | str | None


class DefinitionError(Exception):
    """A definition that cannot be read; the message names the line."""


class Versions(NamedTuple):
    """An inclusive range of versions; empty when `first > last`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(1, 0)


class Field(NamedTuple):
    """One field of a struct. `default` is None both for "no default given" and for `default null`;
    `null_default` distinguishes the two."""

    name: str
    type: str
    versions: Versions
    null_versions: Versions
    default: DefaultValue
    null_default: bool
    tag: int
    tag_versions: Versions
    ignorable: bool
    compact: bool

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[")

    @property
    def element_type(self) -> str:
        """The type inside the brackets, or the type itself."""
        return self.type[1:-1] if self.is_array else self.type

    @property
    def is_struct(self) -> bool:
        """True for a struct field that is not an array."""
        return self.type not in PRIMITIVES and not self.is_array

    @property
    def none_when_absent(self) -> bool:
        """A tagged struct that cannot be null on the wire: our classes use None for "absent",
        which spares building a struct of defaults for each one that is not there."""
        return self.is_struct and self.tag >= 0 and self.null_versions == NO_VERSIONS


class StructSchema(NamedTuple):
    """A named list of fields."""

    name: str
    fields: tuple[Field, ...]


class MessageSchema(NamedTuple):
    """One message: its own fields and, by name, the structs they use (in order of first use)."""

    kind: str
    name: str
    api_key: int
    versions: Versions
    flexible_versions: Versions
    fields: tuple[Field, ...]
    structs: dict[str, StructSchema]


def parse_versions(text: str) -> Versions:
    """`3`, `3-5`, `3+` or `none`."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), LAST_VERSION)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def parse_field(line: str) -> Field:
    """One field line, without its indentation."""
    try:
        return _parse_words(line.split())
    except (ValueError, IndexError, StopIteration) as error:
        raise DefinitionError(f"not a field definition: {line!r}") from error


def _parse_words(words: list[str]) -> Field:
    name, type_, versions_text = words[:3]
    null_versions = tag_versions = NO_VERSIONS
    default: DefaultValue = None
    null_default = ignorable = False
    compact = True
    tag = -1
    rest = iter(words[3:])
    for word in rest:
        if word == "null":
            null_versions = parse_versions(next(rest))
        elif word == "default":
            null_default, default = _parse_default(next(rest))
        elif word == "tag":
            tag = int(next(rest))
            tag_versions = parse_versions(next(rest))
        elif word == "ignorable":
            ignorable = True
        elif word == "not-compact":
            compact = False
        else:
            raise ValueError(word)
    return Field(
        name,
        type_,
        parse_versions(versions_text),
        null_versions,
        default,
        null_default,
        tag,
        tag_versions,
        ignorable,
        compact,
    )


def _parse_default(text: str) -> tuple[bool, DefaultValue]:
    if text == "null":
        return True, None
    if text in ("true", "false"):
        return False, text == "true"
    if text.startswith('"'):
        return False, text.strip('"')
    return False, int(text)


def parse_definition(text: str) -> list[MessageSchema]:
    """All messages of one definition file, in order."""
    api_key, api_name = -1, ""
    messages: list[MessageSchema] = []
    blocks = [block for block in text.split("\n\n") if block.strip()]
    for block in blocks:
        lines = block.strip("\n").splitlines()
        words = lines[0].split()
        if words[0] == "api":
            api_key, api_name = int(words[1]), words[2]
        elif words[0] == "struct":
            message = messages[-1]
            fields = _parse_fields(lines[1:], message.structs)
            message.structs[words[1]] = StructSchema(words[1], fields)
        elif words[0] in ("request", "response"):
            name = api_name + words[0].capitalize()
            messages.append(_parse_message(words[0], name, api_key, words[1:], lines[1:]))
        elif words[0] in ("message", "header"):
            messages.append(_parse_message(words[0], words[1], -1, words[2:], lines[1:]))
        else:
            raise DefinitionError(f"not the first line of a block: {lines[0]!r}")
    return messages


def _parse_message(
    kind: str, name: str, api_key: int, words: list[str], lines: list[str]
) -> MessageSchema:
    if len(words) != 4 or words[0] != "versions" or words[2] != "flexible":
        raise DefinitionError(f"{name}: expected 'versions RANGE flexible RANGE', got {words}")
    structs: dict[str, StructSchema] = {}
    fields = _parse_fields(lines, structs)
    versions, flexible = parse_versions(words[1]), parse_versions(words[3])
    return MessageSchema(kind, name, api_key, versions, flexible, fields, structs)


def _parse_fields(lines: list[str], structs: dict[str, StructSchema]) -> tuple[Field, ...]:
    """The fields of one indentation level; deeper lines become structs of the field above them."""
    fields: list[Field] = []
    index = 0
    while index < len(lines):
        indent = _indent(lines[index])
        field = parse_field(lines[index])
        fields.append(field)
        index += 1
        first_child = index
        while index < len(lines) and _indent(lines[index]) > indent:
            index += 1
        if index > first_child:
            name = field.element_type
            if name in structs or name in PRIMITIVES:
                raise DefinitionError(f"{name} is defined twice")
            structs[name] = StructSchema(name, ())  # keeps the order of first use
            structs[name] = StructSchema(name, _parse_fields(lines[first_child:index], structs))
    return tuple(fields)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def format_field(field: Field, type_name: str) -> str:
    """The line that `parse_field` reads back, with `type_name` in place of the type."""
    words = [field.name, type_name, format_versions(field.versions)]
    if field.null_versions != NO_VERSIONS:
        words += ["null", format_versions(field.null_versions)]
    if field.null_default:
        words += ["default", "null"]
    elif isinstance(field.default, bool):
        words += ["default", str(field.default).lower()]
    elif isinstance(field.default, str):
        words += ["default", f'"{field.default}"']
    elif field.default is not None:
        words += ["default", str(field.default)]
    if field.tag >= 0:
        words += ["tag", str(field.tag), format_versions(field.tag_versions)]
    if field.ignorable:
        words.append("ignorable")
    if not field.compact:
        words.append("not-compact")
    return " ".join(words)


def format_versions(versions: Versions) -> str:
    """The text that `parse_versions` reads back."""
    if versions == NO_VERSIONS:
        return "none"
    if versions.last == LAST_VERSION:
        return f"{versions.first}+"
    if versions.first == versions.last:
        return str(versions.first)
    return f"{versions.first}-{versions.last}"
