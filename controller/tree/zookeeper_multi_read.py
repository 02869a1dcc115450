"""ZooKeeper's multiRead request (since 3.6), which kazoo does not have.

kazoo sends any object with ``type``, ``serialize`` and ``deserialize`` as a request. Each znode has
a result of its own; one that does not exist does not fail the others. A server before 3.6 does not
support the request; the store then reads the znodes one by one.
"""

import struct
from collections.abc import Sequence

from ottla.controller.tree.store import Stat

MULTI_READ = 22
GET_DATA = 4
NO_NODE = -101
OK = 0

_HEADER = struct.Struct(">iBi")  # type of the operation, last one, error
_INT = struct.Struct(">i")
_STAT = struct.Struct(">qqqqiiiqiiq")

Node = tuple[bytes, Stat] | int
"""Data and Stat, or the error code of that znode."""


def read_stat(buffer: bytes, offset: int) -> Stat:
    """Decodes the 68 bytes of a Stat."""
    (
        czxid,
        mzxid,
        ctime_ms,
        mtime_ms,
        version,
        cversion,
        _aversion,
        ephemeral_owner,
        data_length,
        children_count,
        pzxid,
    ) = _STAT.unpack_from(buffer, offset)
    return Stat(
        version=version,
        czxid=czxid,
        mzxid=mzxid,
        ephemeral_owner=ephemeral_owner,
        children_count=children_count,
        cversion=cversion,
        pzxid=pzxid,
        ctime_ms=ctime_ms,
        mtime_ms=mtime_ms,
        data_length=data_length,
    )


class MultiRead:
    """Reads the data of full paths (with the chroot)."""

    type = MULTI_READ

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytearray:
        out = bytearray()
        for path in self.paths:
            encoded = path.encode()
            out += _HEADER.pack(GET_DATA, 0, -1)
            out += _INT.pack(len(encoded))
            out += encoded
            out.append(0)  # no watch
        out += _HEADER.pack(-1, 1, -1)
        return out

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[Node]:
        nodes: list[Node] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return nodes
            (number,) = _INT.unpack_from(buffer, offset)  # an error code, or the data's length
            offset += _INT.size
            if kind == -1:
                nodes.append(number)
                continue
            data = bytes(buffer[offset : offset + max(number, 0)])
            offset += max(number, 0)
            nodes.append((data, read_stat(buffer, offset)))
            offset += _STAT.size

    def __repr__(self) -> str:
        return f"MultiRead({len(self.paths)} paths)"
