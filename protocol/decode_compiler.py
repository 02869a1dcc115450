"""Writes the source of one flat decode function for one version of a message.

The function is straight-line code with a loop for each array. Runs of fixed-size fields, with the
first byte of the length that follows them, are read by one `unpack_from`. It checks every length
before it makes anything of that length. Any failure is turned into a ProtocolError; the field is
found by the number of the line that failed, which costs nothing as long as nothing does.

The sliced form of a function is a generator: it yields the number of the elements that it is about
to read, so that its caller can refuse more or read them later.
"""

from __future__ import annotations

from struct import Struct as Format
from struct import calcsize

from ottla.protocol.layout import FIXED_CODES, Layout, default_expression
from ottla.protocol.primitives import (
    IntegerReaders,
    bad_count,
    bad_length,
    check_tag_count,
    continue_unsigned_varint,
    read_long_string_length,
    read_tag,
    read_tagged_fields,
    wrong_tag_size,
)
from ottla.protocol.schema import Field
from ottla.protocol.source_writer import SourceWriter
from ottla.protocol.uuids import ZERO_UUID

HEAD = """\
def decode(buffer, position):
    b = buffer
    p = position
    end = len(b)
    try:
"""

SLICED_HEAD = """\
def decode(buffer, position):
    b = buffer
    p = position
    end = len(b)
    try:
        yield 0
"""

TAIL = """\
        return {result}, p
    except ERRORS as error:
        raise failure(error, LINES) from None
"""


# Elements between two yields of a sliced function: with the longest ones some tenths of a
# millisecond.
SLICE_MASK = 63

GLOBALS: dict[str, object] = {
    "new": object.__new__,
    "ZERO_UUID": ZERO_UUID,
    "varint": continue_unsigned_varint,
    "string_length": read_long_string_length,
    "read_tagged_fields": read_tagged_fields,
    "check_tag_count": check_tag_count,
    "read_tag": read_tag,
    "bad_length": bad_length,
    "bad_count": bad_count,
    "wrong_tag_size": wrong_tag_size,
}


class DecodeCompiler(SourceWriter):
    """Builds `source`, its global `names` and the fields of each line."""

    def __init__(self, layout: Layout, *, sliced: bool = False) -> None:
        super().__init__(SLICED_HEAD if sliced else HEAD, dict(GLOBALS))
        self.sliced = sliced
        self.run: list[tuple[str, str, str]] = []
        self.has_records = contains_records(layout)
        if not self.has_records:
            # With records, views of the caller's buffer are handed out: it must stay what it is.
            self.emit("if type(b) is not bytes:")
            self.emit("    b = bytes(b)")
        result = self.struct(layout)
        self.finish(TAIL.format(result=result))

    # Writing lines

    def read_fixed(self, code: str, target: str) -> None:
        """Adds a fixed-size value to the run that the next `flush` reads."""
        self.run.append((self.place, code, target))

    def flush(self) -> None:
        if not self.run:
            return
        codes = "".join(code for _, code, _ in self.run)
        fields = tuple(self.run)
        if codes == "B":
            self.emit_fields(f"{fields[0][2]} = b[p]", fields)
        else:
            targets = ", ".join(target for _, _, target in fields)
            comma = "," if len(fields) == 1 else ""
            self.emit_fields(f"{targets}{comma} = {self.unpacker(codes)}(b, p)", fields)
        self.emit(f"p += {calcsize('>' + codes)}")
        self.run.clear()

    def unpacker(self, codes: str) -> str:
        name = "unpack_" + codes.replace("?", "z")
        self.names[name] = Format(">" + codes).unpack_from
        return name

    # Structs

    def struct(self, layout: Layout) -> str:
        """Reads a struct into a new variable and returns its name."""
        self.flush()
        target = self.variable("o")
        self.emit(f"{target} = new({self.name('C', layout.cls)})")
        for field in layout.absent:
            self.emit(f"{target}.{field.name} = {self.default(layout, field)}")
        for field in layout.plain:
            self.field(layout, field, f"{target}.{field.name}")
        if layout.flexible:
            self.tagged_section(layout, target)
        elif layout.has_unknown:
            self.emit(f"{target}.unknown_tagged_fields = None")
        self.flush()
        return target

    def default(self, layout: Layout, field: Field) -> str:
        name = self.name("C", layout.nested(field).cls) if field.is_struct else ""
        return default_expression(field, name)

    def tagged_section(self, layout: Layout, target: str) -> None:
        count = self.variable("t")
        self.path.append("_tagged_fields")
        self.read_fixed("B", count)
        self.flush()
        for field in layout.tagged:
            self.emit(f"{target}.{field.name} = {self.default(layout, field)}")
        if layout.tagged:
            self.emit(f"{target}.unknown_tagged_fields = None")
            self.emit(f"if {count}:")
            self.indent += 1
            self.known_tags(layout, target, count)
            self.indent -= 1
        else:
            unknown = f"{target}.unknown_tagged_fields"
            self.emit(f"if {count}:")
            if self.sliced:
                self.emit(f"    yield {count}")
            self.emit(f"    {unknown}, p = read_tagged_fields(b, p, {count}, end)")
            self.emit("else:")
            self.emit(f"    {unknown} = None")
        self.path.pop()

    def known_tags(self, layout: Layout, target: str, count: str) -> None:
        tag, field_end = self.variable("g"), self.variable("f")
        self.emit(f"if {count} > 127:")
        self.emit(f"    {count}, p = varint(b, p, {count})")
        self.emit(f"check_tag_count({count}, p, end)")
        if self.sliced:
            self.emit(f"yield {count}")
        self.emit(f"for _ in range({count}):")
        self.indent += 1
        self.emit(f"{tag}, p, {field_end} = read_tag(b, p, end)")
        section = self.path.pop()
        for position, field in enumerate(layout.tagged):
            self.emit(f"{'elif' if position else 'if'} {tag} == {field.tag}:")
            self.indent += 1
            start = self.variable("s")
            self.emit(f"{start} = p")
            self.field(layout, field, f"{target}.{field.name}")
            self.flush()
            self.path.append(field.name)
            self.emit(f"if p != {field_end}:")
            self.emit(f"    raise wrong_tag_size({field_end} - {start}, p - {start})")
            self.path.pop()
            self.indent -= 1
        self.path.append(section)
        self.emit("else:")
        self.indent += 1
        unknown = f"{target}.unknown_tagged_fields"
        self.emit(f"if {unknown} is None:")
        self.emit(f"    {unknown} = {{}}")
        self.emit(f"{unknown}[{tag}] = bytes(b[p:{field_end}])")
        self.emit(f"p = {field_end}")
        self.indent -= 2

    # Fields

    def field(self, layout: Layout, field: Field, target: str) -> None:
        self.path.append(field.name)
        if field.is_array:
            self.array(layout, field, target)
        elif field.is_struct:
            self.struct_field(layout, field, target)
        elif field.type in FIXED_CODES:
            self.read_fixed(FIXED_CODES[field.type], target)
        else:
            self.sized(layout, field, field.type, target, nullable=layout.nullable(field))
        self.path.pop()

    def struct_field(self, layout: Layout, field: Field, target: str) -> None:
        if not layout.nullable(field):
            self.emit(f"{target} = {self.struct(layout.nested(field))}")
            return
        mark = self.variable("n")
        self.read_fixed("b", mark)
        self.flush()
        self.emit(f"if {mark} {'<' if field.tag < 0 else '<='} 0:")
        self.emit(f"    {target} = None")
        self.emit("else:")
        self.indent += 1
        self.emit(f"{target} = {self.struct(layout.nested(field))}")
        self.indent -= 1

    def length(self, layout: Layout, field: Field, type_name: str) -> str:
        """Reads a length or count into a variable; -1 is null in both forms."""
        length = self.variable("n")
        if not layout.compact(field):
            self.read_fixed("h" if type_name == "string" else "i", length)
            self.flush()
            return length
        self.read_fixed("B", length)
        self.flush()
        if type_name in ("bytes", "records"):
            self.long_varint(length)
        else:
            read = "string_length" if type_name == "string" else "varint"
            self.emit(f"if {length} > 127:")
            self.emit(f"    {length}, p = {read}(b, p, {length})")
        self.emit(f"{length} -= 1")
        return length

    def long_varint(self, length: str) -> None:
        """The rest of a varint that often takes two or three bytes, without a call for those."""
        second, third = self.variable("x"), self.variable("x")
        self.emit(f"if {length} > 127:")
        self.indent += 1
        self.emit(f"{second} = b[p]")
        self.emit(f"if {second} < 128:")
        self.emit(f"    {length} += ({second} << 7) - 128")
        self.emit("    p += 1")
        self.emit(f"elif ({third} := b[p + 1]) < 128:")
        self.emit(f"    {length} += ({second} << 7) + ({third} << 14) - 16512")
        self.emit("    p += 2")
        self.emit("else:")
        self.emit(f"    {length}, p = varint(b, p, {length})")
        self.indent -= 1

    def sized(
        self, layout: Layout, field: Field, type_name: str, target: str, *, nullable: bool
    ) -> None:
        """A string, bytes or records."""
        length = self.length(layout, field, type_name)
        if nullable:
            self.emit(f"if {length} == -1:")
            self.emit(f"    {target} = None")
            self.emit("else:")
            self.indent += 1
        stop = self.variable("e")
        self.emit(f"{stop} = p + {length}")
        self.emit(f"if {length} < 0 or {stop} > end:")
        self.emit(f"    raise bad_length({length}, end - p)")
        self.emit(f"{target} = {self.sized_value(type_name, stop)}")
        self.emit(f"p = {stop}")
        if nullable:
            self.indent -= 1

    def sized_value(self, type_name: str, stop: str) -> str:
        if type_name == "records":
            return f"memoryview(b)[p:{stop}]"
        if type_name == "string":
            return f'str(b[p:{stop}], "utf-8")' if self.has_records else f"b[p:{stop}].decode()"
        return f"bytes(b[p:{stop}])" if self.has_records else f"b[p:{stop}]"

    def array(self, layout: Layout, field: Field, target: str) -> None:
        count = self.length(layout, field, "array")
        nullable = layout.nullable(field)
        if nullable:
            self.emit(f"if {count} == -1:")
            self.emit(f"    {target} = None")
            self.emit("else:")
            self.indent += 1
        minimum = layout.element_minimum(field)
        needed = count if minimum == 1 else f"{count} * {minimum}"
        self.emit(f"if {count} < 0 or {needed} > end - p:")
        self.emit(f"    raise bad_count({count}, end - p)")
        if self.sliced:
            self.emit(f"yield {count}")
        self.elements(layout, field, target, count)
        if nullable:
            self.indent -= 1

    def elements(self, layout: Layout, field: Field, target: str, count: str) -> None:
        code = FIXED_CODES.get(field.element_type)
        if code is not None and code != "16s":
            readers = f"read_many_{code}"
            self.names.setdefault(readers, IntegerReaders(code))
            self.emit(f"{target} = list({readers}[{count}](b, p))")
            self.emit(f"p += {count} * {calcsize('>' + code)}")
            return
        items = self.variable("l")
        self.emit(f"{items} = []")
        index = self.variable("i") if self.sliced else "_"
        self.emit(f"for {index} in range({count}):")
        self.indent += 1
        if self.sliced:
            self.emit(f"if {index} & {SLICE_MASK} == {SLICE_MASK}:")
            self.emit("    yield 0")
        if code is not None:
            item = self.variable("v")
            self.read_fixed(code, item)
            self.flush()
        elif field.element_type in ("string", "bytes"):
            item = self.variable("v")
            self.sized(layout, field, field.element_type, item, nullable=False)
        else:
            item = self.struct(layout.nested(field))
        self.emit(f"{items}.append({item})")
        self.indent -= 1
        self.emit(f"{target} = {items}")


def contains_records(layout: Layout) -> bool:
    """Whether a version has a records field at any depth."""
    for field in layout.plain + layout.tagged:
        if field.type == "records":
            return True
        name = field.element_type
        if name[0].isupper() and contains_records(layout.nested(field)):
            return True
    return False
