"""Requests with as much work as their bytes can hold, generated from the message definitions.

For each API and version: every array, at any depth, with many of the smallest elements,
once with equal and once with distinct names; the longest names; unknown tagged fields. The
bytes are written here and not by the encoders, so nothing in the broker limits what is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ottla.protocol.layout import FIXED_CODES, Layout
from ottla.protocol.registry import API, Api
from ottla.protocol.schema import Field

LONGEST_NAME = 32767


class Shape(NamedTuple):
    """One request: what it is made of, and its frame without the size in front."""

    api: str
    version: int
    name: str
    frame: bytes


def shapes(api: Api, version: int, elements: int) -> Iterator[Shape]:
    """All requests of a version with about `elements` elements each."""
    layout = request_layout(api, version)
    for path in array_paths(layout):
        for distinct in (False, True):
            body = Writer(path, elements, distinct=distinct).struct(layout, ())
            kind = "distinct" if distinct else "equal"
            yield Shape(api.name, version, f"{'.'.join(path)} {kind}", header(api, version) + body)
        if len(path) > 1:
            body = Writer(path, elements, outer=elements).struct(layout, ())
            yield Shape(api.name, version, f"{'.'.join(path)} nested", header(api, version) + body)
        names = max(1, elements // 1000)
        body = Writer(path, names, distinct=True, name_bytes=LONGEST_NAME).struct(layout, ())
        yield Shape(api.name, version, f"{'.'.join(path)} long", header(api, version) + body)
    if layout.flexible:
        body = Writer((), 0).struct(layout, ())[:-1]
        tags = b"".join(varint(1000 + tag) + b"\0" for tag in range(elements))
        yield Shape(
            api.name, version, "tags", header(api, version) + body + varint(elements) + tags
        )


def request_layout(api: Api, version: int) -> Layout:
    return Layout(api.request, version, flexible=version >= api.first_flexible_version)


def array_paths(layout: Layout, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all arrays, outer ones first; those in tagged fields are left out."""
    for field in layout.plain:
        path = (*above, field.name)
        if field.is_array:
            yield path
        if field.element_type[0].isupper():
            yield from array_paths(layout.nested(field), path)


def header(api: Api, version: int) -> bytes:
    """A request header without a client id, or with none where the version has no room for it."""
    fixed = struct.pack(">hhi", api.key, version, 7)
    kind = api.request_header_version(version)
    return fixed + (b"", b"\xff\xff", b"\xff\xff\0")[kind]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Writer:
    """Writes one request in which the array at `path` has `count` elements. The arrays above it
    have one, or `outer` with one element each below."""

    def __init__(
        self,
        path: tuple[str, ...],
        count: int,
        *,
        distinct: bool = False,
        outer: int = 0,
        name_bytes: int = 0,
    ) -> None:
        self.path = path
        self.count = count
        self.distinct = distinct
        self.outer = outer
        self.name_bytes = name_bytes

    def struct(self, layout: Layout, place: tuple[str, ...], number: int = 0) -> bytes:
        """A struct of the smallest values. `number` makes its names distinct."""
        pieces = [self.field(layout, field, (*place, field.name), number) for field in layout.plain]
        if layout.flexible:
            pieces.append(b"\0")
        return b"".join(pieces)

    def field(self, layout: Layout, field: Field, place: tuple[str, ...], number: int) -> bytes:
        compact = layout.compact(field)
        nullable = layout.nullable(field)
        if field.is_array:
            return self.array(layout, field, place)
        if field.is_struct:
            if nullable and place != self.path[: len(place)]:
                return b"\xff"
            return (b"\1" if nullable else b"") + self.struct(layout.nested(field), place, number)
        if field.type in FIXED_CODES:
            return self.fixed(field.type, number)
        return self.sized(field.type, number, compact=compact)

    def fixed(self, kind: str, number: int) -> bytes:
        code = FIXED_CODES[kind]
        if code == "16s":
            return struct.pack(">QQ", 1, number) if self.distinct else bytes(16)
        if self.distinct and code in "iq":
            return struct.pack(">" + code, number)
        return bytes(struct.calcsize(">" + code))

    def sized(self, kind: str, number: int, *, compact: bool) -> bytes:
        value = b""
        if kind == "string" and self.distinct:
            value = b"%06x" % number
            value = value.ljust(self.name_bytes, b"n")
        if compact:
            return varint(len(value) + 1) + value
        return struct.pack(">h" if kind == "string" else ">i", len(value)) + value

    def array(self, layout: Layout, field: Field, place: tuple[str, ...]) -> bytes:
        count = 0
        if place == self.path:
            count = 1 if self.outer else self.count
        elif place == self.path[: len(place)]:
            count = self.outer if self.outer and place == self.path[:1] else 1
        size = varint(count + 1) if layout.compact(field) else struct.pack(">i", count)
        if field.element_type in FIXED_CODES:
            elements = (self.fixed(field.element_type, number) for number in range(count))
        elif field.element_type[0].isupper():
            nested = layout.nested(field)
            elements = (self.struct(nested, place, number) for number in range(count))
        else:
            compact = layout.compact(field)
            elements = (
                self.sized(field.element_type, number, compact=compact) for number in range(count)
            )
        return size + b"".join(elements)


def all_versions(keys: list[int] | None = None) -> Iterator[tuple[Api, int]]:
    for key in sorted(API if keys is None else keys):
        api = API[key]
        for version in range(api.min_version, api.max_version + 1):
            yield api, version
