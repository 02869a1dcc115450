"""The custom metadata of a segment, in the encoding of Aiven's tiered storage plugin.

It is a section of tagged fields (KIP-482): the number of fields, then tag, length and content of
each, in order of the tags. Unknown tags are skipped. Without fields it is no bytes at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.storage.remote.remote_storage import RemoteObjectCorruptError

REMOTE_SIZE = "REMOTE_SIZE"
OBJECT_PREFIX = "OBJECT_PREFIX"
OBJECT_KEY = "OBJECT_KEY"
#: The names of the setting `custom.metadata.fields.include`; the index is the tag.
FIELD_NAMES = (REMOTE_SIZE, OBJECT_PREFIX, OBJECT_KEY)

# The broker's default limit is 128 bytes (remote.log.metadata.custom.metadata.max.bytes). A longer
# one is read if it is not absurd: a key has up to 1024 bytes in all object stores.
_MAX_BYTES = 4096
_MAX_FIELDS = 64


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """The fields that are known. `remote_size` is the size of all objects in bytes."""

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None

    def encode(self, include: Iterable[str] = FIELD_NAMES) -> bytes | None:
        """The bytes of the fields that are set and included, or None if there are none."""
        included = set(include)
        fields: list[tuple[int, bytes]] = []
        if self.remote_size is not None and REMOTE_SIZE in included:
            fields.append((0, _varlong(self.remote_size)))
        if self.object_prefix is not None and OBJECT_PREFIX in included:
            fields.append((1, _compact_string(self.object_prefix)))
        if self.object_key is not None and OBJECT_KEY in included:
            fields.append((2, _compact_string(self.object_key)))
        if not fields:
            return None
        parts = [_unsigned_varint(len(fields))]
        for tag, content in fields:
            parts += [_unsigned_varint(tag), _unsigned_varint(len(content)), content]
        return b"".join(parts)

    @staticmethod
    def decode(data: bytes | None) -> CustomMetadata:
        """Raise RemoteObjectCorruptError."""
        if not data:
            return _EMPTY
        if len(data) > _MAX_BYTES:
            raise RemoteObjectCorruptError(
                f"The custom metadata has {len(data)} bytes, expected at most {_MAX_BYTES}"
            )
        try:
            return _decode(data)
        except (ValueError, IndexError) as error:
            raise RemoteObjectCorruptError(f"The custom metadata is invalid: {error}") from None


_EMPTY = CustomMetadata()


def _decode(data: bytes) -> CustomMetadata:
    count, position = _read_unsigned_varint(data, 0)
    if count > _MAX_FIELDS:
        raise ValueError(f"{count} fields")
    remote_size: int | None = None
    texts: dict[int, str] = {}
    for _ in range(count):
        tag, position = _read_unsigned_varint(data, position)
        length, position = _read_unsigned_varint(data, position)
        if position + length > len(data):
            raise ValueError(f"field {tag} has {length} bytes, {len(data) - position} are left")
        content = data[position : position + length]
        position += length
        if tag == 0:
            encoded, _end = _read_unsigned_varint(content, 0)
            remote_size = (encoded >> 1) ^ -(encoded & 1)
        elif tag in (1, 2):
            size, start = _read_unsigned_varint(content, 0)
            if size < 1 or start + size - 1 != len(content):
                raise ValueError(f"field {tag} is no string")
            texts[tag] = content[start:].decode()
    return CustomMetadata(remote_size, texts.get(1), texts.get(2))


def _unsigned_varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _varlong(value: int) -> bytes:
    """Zigzag-encoded. `value` has 63 bits at most."""
    return _unsigned_varint((value << 1) ^ (value >> 63))


def _compact_string(text: str) -> bytes:
    content = text.encode()
    return _unsigned_varint(len(content) + 1) + content


def _read_unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than 64 bits")
