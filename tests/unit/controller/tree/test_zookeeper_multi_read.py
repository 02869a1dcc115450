"""multiRead on the wire."""

from __future__ import annotations

import struct

from ottla.controller.tree.zookeeper_multi_read import NO_NODE, MultiRead, read_stat

STAT = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


def test_request() -> None:
    assert bytes(MultiRead(["/a", "/\u00fc"]).serialize()) == (
        struct.pack(">iBi", 4, 0, -1)
        + struct.pack(">i", 2)
        + b"/a\x00"
        + struct.pack(">iBi", 4, 0, -1)
        + struct.pack(">i", 3)
        + b"/\xc3\xbc\x00"
        + struct.pack(">iBi", -1, 1, -1)
    )


def test_response() -> None:
    response = (
        b"head"
        + struct.pack(">iBi", 4, 0, 0)
        + struct.pack(">i", 4)
        + b"data"
        + STAT
        + struct.pack(">iBi", -1, 0, NO_NODE)
        + struct.pack(">i", NO_NODE)
        + struct.pack(">iBi", 4, 0, 0)
        + struct.pack(">i", -1)  # no data at all
        + STAT
        + struct.pack(">iBi", -1, 1, -1)
    )
    stat = read_stat(STAT, 0)
    assert MultiRead.deserialize(response, 4) == [(b"data", stat), NO_NODE, (b"", stat)]


def test_stat() -> None:
    stat = read_stat(STAT, 0)
    assert (stat.czxid, stat.mzxid, stat.ctime_ms, stat.mtime_ms) == (1, 2, 3, 4)
    assert (stat.version, stat.cversion, stat.ephemeral_owner) == (5, 6, 8)
    assert (stat.data_length, stat.children_count, stat.pzxid) == (9, 10, 11)
