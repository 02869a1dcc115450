"""Jute, the encoding of ZooKeeper's client protocol: big-endian numbers, lengths before strings.

`Reader` raises `MarshallingError` for input that ends early or has an invalid length; it never
allocates by a length that the frame does not have.
"""

import struct
from collections.abc import Sequence

from ottla.controller.tree.store import NULL_DATA, Acl, Stat

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_STAT = struct.Struct(">qqqqiiiqiiq")
_REPLY = struct.Struct(">iqi")
_MULTI_HEADER = struct.Struct(">i?i")


class MarshallingError(ValueError):
    """The bytes are not what the request's type requires."""


class Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def _take(self, size: int) -> int:
        at = self._at
        if size < 0 or size > len(self._data) - at:
            raise MarshallingError(f"{size} bytes expected, {len(self._data) - at} left")
        self._at = at + size
        return at

    def int32(self) -> int:
        value: int = _INT.unpack_from(self._data, self._take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _LONG.unpack_from(self._data, self._take(8))[0]
        return value

    def boolean(self) -> bool:
        return self._data[self._take(1)] != 0

    def buffer(self) -> bytes:
        """The bytes; NULL_DATA, which equals no bytes, for a null buffer."""
        size = self.int32()
        if size == -1:
            return NULL_DATA
        at = self._take(size)
        return self._data[at : at + size]

    def string(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise MarshallingError("a string is not UTF-8") from None

    def strings(self) -> list[str]:
        return [self.string() for _ in range(self._count(4))]

    def acl(self) -> tuple[Acl, ...]:
        return tuple(
            Acl(self.int32(), self.string(), self.string()) for _ in range(self._count(12))
        )

    def _count(self, smallest_size: int) -> int:
        """The number of entries of a vector; each takes at least `smallest_size` bytes."""
        count = self.int32()
        if count > self.remaining // smallest_size:
            raise MarshallingError(f"a vector of {count} entries in {self.remaining} bytes")
        return max(count, 0)


def int32(value: int) -> bytes:
    return _INT.pack(value)


def int64(value: int) -> bytes:
    return _LONG.pack(value)


def buffer(data: bytes) -> bytes:
    if data is NULL_DATA:
        return _INT.pack(-1)
    return _INT.pack(len(data)) + data


def string(text: str) -> bytes:
    return buffer(text.encode())


def strings(texts: Sequence[str]) -> bytes:
    return _INT.pack(len(texts)) + b"".join(map(string, texts))


def acl(entries: Sequence[Acl]) -> bytes:
    parts = [_INT.pack(len(entries))]
    for entry in entries:
        parts += (_INT.pack(entry.permissions), string(entry.scheme), string(entry.name))
    return b"".join(parts)


def stat(value: Stat) -> bytes:
    return _STAT.pack(
        value.czxid,
        value.mzxid,
        value.ctime_ms,
        value.mtime_ms,
        value.version,
        value.cversion,
        value.acl_version,
        value.ephemeral_owner,
        value.data_length,
        value.children_count,
        value.pzxid,
    )


def reply(xid: int, zxid: int, error: int = 0, body: bytes = b"") -> bytes:
    """A frame with the header of a response; a response with an error has no body."""
    return _INT.pack(_REPLY.size + len(body)) + _REPLY.pack(xid, zxid, error) + body


def multi_header(kind: int, done: bool, error: int) -> bytes:
    return _MULTI_HEADER.pack(kind, done, error)


def read_multi_header(reader: Reader) -> tuple[int, bool, int]:
    return reader.int32(), reader.boolean(), reader.int32()
