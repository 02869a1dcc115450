"""The header checksums of lz4 frames."""

import pytest

from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.lz4_header import with_broken_checksum, with_right_checksum, xxhash32


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_known_hashes(data: bytes, wanted: int) -> None:
    assert xxhash32(data) == wanted


@pytest.mark.parametrize("flags", [0x60, 0x68, 0x61, 0x69])
def test_fixing_undoes_breaking(flags: int) -> None:
    optional = (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    frame = b"\x04\x22\x4d\x18" + bytes([flags, 0x40]) + b"7" * optional + b"\0" + b"body"
    right = with_right_checksum(frame)
    broken = with_broken_checksum(right)
    assert right[6 + optional] != broken[6 + optional]
    assert with_right_checksum(memoryview(broken)) == right
    assert broken[7 + optional :] == b"body"


def test_no_frame() -> None:
    for data in (b"", b"\x04\x22\x4d\x18\x68\x40\0", b"\x05\x22\x4d\x18\x60\x40\0"):
        with pytest.raises(CorruptRecordError):
            with_right_checksum(data)
