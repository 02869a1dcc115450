"""The pieces of the wire format that compiled codecs call when a value is not of the common kind.

Compiled code reads fixed-size fields with `struct` and one-byte varints in place; longer varints,
unknown tagged fields and every complaint come here. Functions take `(buffer, position)`, check
lengths against the end before they make anything, and raise `Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812  # an exception, not a constant

#: What can be decoded. Records are views into it, everything else is copied out.
Buffer = bytes | bytearray | memoryview

#: Kafka holds string lengths in 15 bits, also where the length is a varint.
MAX_STRING_LENGTH = 0x7FFF

#: Lengths of arrays and bytes are at most those of a Java int.
MAX_LENGTH = 0x7FFF_FFFF

#: The tagged fields of one struct. Kafka's messages have three at the most, and the tags that
#: clients add are few; the bound keeps a request from being made of millions of them.
MAX_TAGGED_FIELDS = 1000

#: An unsigned varint below this takes one byte.
ONE_BYTE_VARINT = 128


class Malformed(Exception):  # internal: becomes ProtocolError with its place
    """A value that breaks the format. Compiled code turns it into a ProtocolError that names the
    API, the version and the field."""


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """(value, position after it) of an unsigned varint of at most 32 bits.

    Raises IndexError at the end of the buffer, which compiled code reports as such.
    """
    first = buffer[position]
    if first < ONE_BYTE_VARINT:
        return first, position + 1
    return continue_unsigned_varint(buffer, position + 1, first)


def continue_unsigned_varint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """The same when the first byte has been read and more follow."""
    value = first & 0x7F
    shift = 7
    while shift < 28:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < ONE_BYTE_VARINT:
            return value, position
        shift += 7
    byte = buffer[position]
    if byte > 0x0F:
        raise Malformed("a varint is longer than 32 bits")
    return value | byte << 28, position + 1


def encode_unsigned_varint(value: int) -> bytes:
    """1 to 5 bytes; Malformed when the value does not fit 32 bits."""
    if value < ONE_BYTE_VARINT:
        if value < 0:
            raise Malformed(f"{value} is negative")
        return bytes((value,))
    if value > 0xFFFF_FFFF:
        raise Malformed(f"{value} does not fit a varint of 32 bits")
    out = bytearray()
    while value >= ONE_BYTE_VARINT:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_long_string_length(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """The length plus one of a compact string whose varint is longer than a byte."""
    value, position = continue_unsigned_varint(buffer, position, first)
    if value > MAX_STRING_LENGTH + 1:
        raise Malformed(f"a string of {value - 1} bytes is longer than {MAX_STRING_LENGTH}")
    return value, position


def encode_string_length(value: int) -> bytes:
    """The varint of a compact string's length plus one."""
    if value > MAX_STRING_LENGTH + 1:
        raise Malformed(f"a string of {value - 1} bytes is longer than {MAX_STRING_LENGTH}")
    return encode_unsigned_varint(value)


def read_tagged_fields(
    buffer: Buffer, position: int, count: int, end: int
) -> tuple[dict[int, bytes] | None, int]:
    """The tagged fields of a struct that knows none, by tag, or None. `count` is the first byte of
    the section, already read; the last of several fields with the same tag stays."""
    if count >= ONE_BYTE_VARINT:
        count, position = continue_unsigned_varint(buffer, position, count)
    check_tag_count(count, position, end)
    fields: dict[int, bytes] = {}
    for _ in range(count):
        tag, position, field_end = read_tag(buffer, position, end)
        fields[tag] = bytes(buffer[position:field_end])
        position = field_end
    return fields or None, position


def check_tag_count(count: int, position: int, end: int) -> None:
    """A tagged field takes two bytes or more, and there are not more than MAX_TAGGED_FIELDS."""
    if count > MAX_TAGGED_FIELDS:
        raise Malformed(f"{count} tagged fields are more than {MAX_TAGGED_FIELDS}")
    if count * 2 > end - position:
        raise Malformed(f"{count} tagged fields do not fit the {end - position} bytes left")


def read_tag(buffer: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """(tag, position of its value, end of its value)."""
    tag, position = read_unsigned_varint(buffer, position)
    size, position = read_unsigned_varint(buffer, position)
    if size > end - position:
        raise Malformed(f"tagged field {tag} has {size} bytes, but only {end - position} are left")
    return tag, position, position + size


def encode_tagged_fields(known: dict[int, bytes], unknown: dict[int, bytes] | None) -> bytes:
    """A whole tagged section, ascending by tag."""
    fields = known
    if unknown:
        if not known.keys().isdisjoint(unknown):
            raise Malformed("an unknown tagged field has the tag of a known one")
        fields = known | unknown
    pieces = [encode_unsigned_varint(len(fields))]
    for tag in sorted(fields):
        value = fields[tag]
        pieces += (encode_unsigned_varint(tag), encode_unsigned_varint(len(value)), value)
    return b"".join(pieces)


def bad_length(length: int, left: int) -> Malformed:
    """The complaint about the length of a string, bytes or records."""
    if length < 0:
        return Malformed(
            "is null, which this version does not allow"
            if length == -1
            else (f"has the negative length {length}")
        )
    return Malformed(f"has {length} bytes, but only {left} are left")


def bad_count(count: int, left: int) -> Malformed:
    """The complaint about the number of elements of an array."""
    if count < 0:
        return Malformed(
            "is null, which this version does not allow"
            if count == -1
            else (f"has the negative count {count}")
        )
    return Malformed(f"has {count} elements, which do not fit the {left} bytes left")


def wrong_tag_size(size: int, used: int) -> Malformed:
    """The error for a known tagged field whose value does not end where its size ends."""
    return Malformed(f"is a tagged field of {size} bytes, but its value takes {used}")


def not_carried(value: object) -> Malformed:
    """The complaint about a value that the version has no place for."""
    return Malformed(f"is {value!r}, which this version cannot carry")


def wrong_uuid(value: bytes) -> Malformed:
    """The complaint about a uuid of another length."""
    return Malformed(f"a uuid has 16 bytes, not {len(value)}")


class IntegerReaders:
    """`unpack_from` for arrays of one integer type: `readers[count](buffer, position)`."""

    __slots__ = ("code", "few")

    #: Replica lists and the like are short; longer arrays build their format each time.
    FEW = 16

    def __init__(self, code: str) -> None:
        self.code = code
        self.few = tuple(Struct(f">{count}{code}").unpack_from for count in range(self.FEW))

    def __getitem__(self, count: int) -> Callable[[Buffer, int], tuple[int, ...]]:
        return self.few[count] if count < self.FEW else Struct(f">{count}{self.code}").unpack_from


def pack_integers(code: str, values: Sequence[int]) -> bytes:
    """An array of integers without its count."""
    return Struct(f">{len(values)}{code}").pack(*values)


#: Integer arrays shorter than this are packed with their neighbours: lists of replicas and such.
SHORT_ARRAY = 16

#: Bits of a count below SHORT_ARRAY in the key of `RunPackers`.
COUNT_BITS = 4


class RunPackers(dict[int, Callable[..., bytes]]):
    """`pack` for a run of fixed-size fields with short integer arrays among them, by the counts of
    those arrays: COUNT_BITS for each, the last one lowest. `layout` alternates fixed formats and
    codes of arrays: ("hiB", "i", "B", "i", "B")."""

    #: Counts come from messages, so the number of formats kept has a bound; a cluster has few
    #: combinations of replica counts. A full table starts again.
    MAX_KEPT = 256

    def __init__(self, layout: tuple[str, ...]) -> None:
        super().__init__()
        self.layout = layout

    def __missing__(self, key: int) -> Callable[..., bytes]:
        pieces = [self.layout[-1]]
        rest = key
        for index in range(len(self.layout) - 3, -1, -2):
            count = rest & (SHORT_ARRAY - 1)
            rest >>= COUNT_BITS
            pieces = [self.layout[index], f"{count}{self.layout[index + 1]}", *pieces]
        if len(self) >= self.MAX_KEPT:
            self.clear()
        pack = self[key] = Struct(">" + "".join(pieces)).pack
        return pack


__all__ = ["Buffer", "Malformed", "StructError"]
