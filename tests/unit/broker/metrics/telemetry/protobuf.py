"""Writes OpenTelemetry metrics, as clients do, for tests of the reader."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def attribute(name: str, value: bytes) -> bytes:
    """`value` is an encoded AnyValue."""
    return field(7, field(1, name.encode()) + field(2, value))


def text_value(text: str) -> bytes:
    return field(1, text.encode())


def double_point(value: float, *attributes: bytes) -> bytes:
    return field(1, varint(4 << 3 | 1) + struct.pack("<d", value) + b"".join(attributes))


def integer_point(value: int, *attributes: bytes) -> bytes:
    return field(1, varint(6 << 3 | 1) + struct.pack("<q", value) + b"".join(attributes))


def gauge(name: str, *points: bytes) -> bytes:
    return field(2, field(1, name.encode()) + field(5, b"".join(points)))


def counter(name: str, *points: bytes, temporality: int = 1) -> bytes:
    body = b"".join(points) + varint(2 << 3) + varint(temporality) + varint(3 << 3) + b"\x01"
    return field(2, field(1, name.encode()) + field(3, b"a description") + field(7, body))


def metrics_data(*metrics: bytes) -> bytes:
    """One resource, one scope."""
    resource = field(1, field(1, b"ignored"))
    return field(1, resource + field(2, b"".join(metrics)))
