"""Writes the source of one flat encode function for one version of a message.

The function appends pieces to a list that the caller joins; see `ottla.protocol.encode_run`
neighbouring values become one piece. Records are appended as they are; those that are not
bytes-like are listed in `cuts` by their place in the list.

The sliced form of a function is a generator that yields after each element of an array of strings
or structs, so that its caller can encode the others later.
"""

from __future__ import annotations

from ottla.protocol.encode_run import ZERO_BYTE, RunWriter
from ottla.protocol.layout import FIXED_CODES, Layout, default_expression
from ottla.protocol.primitives import (
    encode_string_length,
    encode_tagged_fields,
    encode_unsigned_varint,
    not_carried,
    pack_integers,
    wrong_uuid,
)
from ottla.protocol.schema import Field
from ottla.protocol.uuids import ZERO_UUID

HEAD = """\
def encode(message, out, cuts):
    add = out.append
    try:
"""

TAIL = """\
        return
    except ERRORS as error:
        raise failure(error, LINES) from error
"""

GLOBALS: dict[str, object] = {
    "ZERO_UUID": ZERO_UUID,
    "BYTES_LIKE": frozenset((bytes, bytearray, memoryview)),
    "encode_varint": encode_unsigned_varint,
    "encode_string_length": encode_string_length,
    "encode_tagged_fields": encode_tagged_fields,
    "pack_integers": pack_integers,
    "not_carried": not_carried,
    "wrong_uuid": wrong_uuid,
}


class EncodeCompiler(RunWriter):
    """Builds `source`, its global `names` and the fields of each line."""

    def __init__(self, layout: Layout, *, sliced: bool = False) -> None:
        super().__init__(HEAD, dict(GLOBALS))
        self.sliced = sliced
        if sliced:
            self.emit("yield")
        self.struct(layout, "message")
        self.flush()
        self.finish(TAIL)

    # Structs

    def struct(self, layout: Layout, source: str) -> None:
        """Writes the struct in the variable `source`."""
        for field in layout.absent:
            if not field.ignorable:
                self.path.append(field.name)
                value = self.load(f"{source}.{field.name}")
                self.emit(f"if {self.not_default(layout, field, value, nullable=True)}:")
                self.emit(f"    raise not_carried({value})")
                self.path.pop()
        for field in layout.plain:
            self.field(layout, field, f"{source}.{field.name}")
        if layout.flexible:
            self.tagged_section(layout, source)
        elif layout.has_unknown:
            self.path.append("unknown_tagged_fields")
            self.emit(f"if {source}.unknown_tagged_fields:")
            self.emit(f"    raise not_carried({source}.unknown_tagged_fields)")
            self.path.pop()

    def load(self, expression: str) -> str:
        value = self.variable("v")
        self.emit(f"{value} = {expression}")
        return value

    def not_default(self, layout: Layout, field: Field, value: str, *, nullable: bool) -> str:
        """The condition that `value` is not the default of `field`."""
        struct_name = self.name("C", layout.nested(field).cls) if field.is_struct else ""
        default = default_expression(field, struct_name)
        if default == "None" and field.none_when_absent:
            return f"{value} is not None and {value} != {struct_name}()"
        if default == "None":
            return f"{value} is not None"
        if default == "[]":
            return f"{value} is None or {value}" if nullable else value
        return f"{value} != {default}"

    def tagged_section(self, layout: Layout, source: str) -> None:
        self.path.append("_tagged_fields")
        unknown = self.load(f"{source}.unknown_tagged_fields")
        if not layout.tagged:
            section = f"encode_tagged_fields({{}}, {unknown})"
            self.item("B", "0", guard=f"not {unknown}", otherwise=section)
            self.path.pop()
            return
        self.path.pop()
        conditions = []
        values: list[tuple[Field, str]] = []
        for field in layout.tagged:
            self.path.append(field.name)
            value = self.load(f"{source}.{field.name}")
            values.append((field, value))
            nullable = layout.nullable(field)
            conditions.append(f"({self.not_default(layout, field, value, nullable=nullable)})")
            self.path.pop()
        section = self.variable("t")
        self.emit(f"{section} = None")
        self.emit(f"if {unknown} or {' or '.join(conditions)}:")
        self.indent += 1
        self.known_tags(layout, values, conditions, section)
        self.path.append("_tagged_fields")
        self.emit(f"{section} = encode_tagged_fields({section}, {unknown})")
        self.indent -= 1
        # Among other items that do not fit, the section may be None where it is written by itself.
        otherwise = f"{section} or {ZERO_BYTE}"
        self.item("B", "0", guard=f"{section} is None", otherwise=otherwise)
        self.path.pop()

    def known_tags(
        self,
        layout: Layout,
        values: list[tuple[Field, str]],
        conditions: list[str],
        section: str,
    ) -> None:
        """Encodes the tagged fields that are set into the dictionary `section`. `add` points to a
        list of their own meanwhile; the run before them is still to be written."""
        outer = self.exchange_run([], None)
        outer_add = self.variable("a")
        self.emit(f"{section} = {{}}")
        self.emit(f"{outer_add} = add")
        for (field, value), condition in zip(values, conditions, strict=True):
            self.emit(f"if {condition}:")
            self.indent += 1
            pieces = self.variable("b")
            self.emit(f"{pieces} = []")
            self.emit(f"add = {pieces}.append")
            self.field(layout, field, value)
            self.flush()
            self.emit(f'{section}[{field.tag}] = b"".join({pieces})')
            self.indent -= 1
        self.emit(f"add = {outer_add}")
        self.exchange_run(*outer)

    # Fields

    def field(self, layout: Layout, field: Field, source: str) -> None:
        self.path.append(field.name)
        if field.is_array:
            self.array(layout, field, source)
        elif field.is_struct:
            self.struct_field(layout, field, source)
        elif field.type == "uuid":
            self.item("16s", self.uuid(source))
        elif field.type in FIXED_CODES:
            self.item(FIXED_CODES[field.type], source)
        else:
            self.sized(layout, field, field.type, source, nullable=layout.nullable(field))
        self.path.pop()

    def uuid(self, source: str) -> str:
        """The variable of a uuid; `pack` would cut or fill one of another length."""
        value = self.load(source)
        self.emit(f"if len({value}) != 16:")
        self.emit(f"    raise wrong_uuid({value})")
        return value

    def struct_field(self, layout: Layout, field: Field, source: str) -> None:
        value = self.load(source)
        if not layout.nullable(field):
            self.struct(layout.nested(field), value)
            return
        # Kafka's generator has a byte before a struct, and a varint before one with a tag.
        null = -1 if field.tag < 0 else 0
        self.item("b", f"{null} if {value} is None else 1")
        self.flush()
        self.emit(f"if {value} is not None:")
        self.indent += 1
        self.struct(layout.nested(field), value)
        self.flush()
        self.indent -= 1

    def length_item(self, layout: Layout, field: Field, type_name: str, length: str) -> None:
        """Adds a length; for compact forms the variable already holds it plus one, 0 for null."""
        if layout.compact(field):
            encode = "encode_string_length" if type_name == "string" else "encode_varint"
            self.item(
                "B",
                length,
                guard=f"{length} < 128",
                otherwise=f"{encode}({length})",
                long=type_name in ("bytes", "records"),
            )
        else:
            self.item("h" if type_name == "string" else "i", length)

    def sized(
        self, layout: Layout, field: Field, type_name: str, source: str, *, nullable: bool
    ) -> None:
        """A string, bytes or records."""
        value = self.load(source)
        length = self.variable("n")
        plus = " + 1" if layout.compact(field) else ""
        encoded = f"{value} = {value}.encode()" if type_name == "string" else ""
        if nullable:
            self.emit(f"if {value} is None:")
            self.emit(f"    {length} = {0 if plus else -1}")
            self.emit(f'    {value} = b""')
            self.emit("else:")
            self.indent += 1
        if encoded:
            self.emit(encoded)
        self.emit(f"{length} = len({value}){plus}")
        if nullable:
            self.indent -= 1
        self.length_item(layout, field, type_name, length)
        self.flush()
        if type_name == "records":
            self.emit(f"if type({value}) not in BYTES_LIKE:")
            self.emit("    cuts.append(len(out))")
        self.emit(f"add({value})")

    def array(self, layout: Layout, field: Field, source: str) -> None:
        items = self.load(source)
        code = FIXED_CODES.get(field.element_type)
        if code is not None and code != "16s" and not layout.nullable(field):
            self.integers(layout, field, code, items)
            return
        count = self.count(layout, field, items)
        if code is not None and code != "16s":
            self.length_item(layout, field, "array", count)
            self.flush()
            self.emit(f"if {items}:")
            self.emit(f'    add(pack_integers("{code}", {items}))')
            return
        self.length_item(layout, field, "array", count)
        if self.has_deferred:
            self.flush()
            self.elements(layout, field, code, items)
            return
        pending = list(self.run)
        self.emit(f"if {items}:")
        self.indent += 1
        self.flush()
        self.elements(layout, field, code, items)
        self.indent -= 1
        self.run = pending
        self.defer(items)

    def count(self, layout: Layout, field: Field, items: str) -> str:
        """The variable of a count in the form that is written."""
        count = self.variable("n")
        plus = " + 1" if layout.compact(field) else ""
        if not layout.nullable(field):
            self.emit(f"{count} = len({items}){plus}")
            return count
        self.emit(f"if {items} is None:")
        self.emit(f"    {count} = {0 if plus else -1}")
        self.emit(f"    {items} = ()")
        self.emit("else:")
        self.emit(f"    {count} = len({items}){plus}")
        return count

    def integers(self, layout: Layout, field: Field, code: str, items: str) -> None:
        """An array of integers, which is packed with its neighbours while it is short."""
        length = self.variable("n")
        self.emit(f"{length} = len({items})")
        if layout.compact(field):
            # A short array's count takes one byte, so the guard of the elements serves it too.
            self.item("B", f"{length} + 1", otherwise=f"encode_varint({length} + 1)")
        else:
            self.item("i", length)
        otherwise = f'pack_integers("{code}", {items})'
        self.item(code, f"*{items}", otherwise=otherwise, count=length)

    def elements(self, layout: Layout, field: Field, code: str | None, items: str) -> None:
        item = self.variable("o")
        self.emit(f"for {item} in {items}:")
        self.indent += 1
        if code is not None:
            self.item(code, self.uuid(item))
        elif field.element_type in ("string", "bytes"):
            self.sized(layout, field, field.element_type, item, nullable=False)
        else:
            self.struct(layout.nested(field), item)
        self.flush()
        if self.sliced:
            self.emit("yield")
        self.indent -= 1
