"""Frames of lz4 put together from raw blocks, for libraries whose own frames have linked blocks.

Java's clients cannot read linked blocks.
"""

from collections.abc import Callable

from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.lz4_header import xxhash32

BLOCK_BYTES = 64 * 1024
_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no checksums, no content size; blocks of at most 64 KiB.
_DESCRIPTOR = b"\x60\x40"
_STORED = 1 << 31  # marks a block that is not compressed
_END_MARK = bytes(4)


def frame_of_blocks(data: Buffer, compress_block: Callable[[memoryview], Buffer]) -> bytes:
    """A frame of independent blocks of 64 KiB, each as `compress_block` returns it, or stored if
    that is not shorter."""
    checksum = (xxhash32(_DESCRIPTOR) >> 8) & 0xFF
    parts: list[Buffer] = [_MAGIC, _DESCRIPTOR, bytes((checksum,))]
    view = memoryview(data)
    for start in range(0, len(view), BLOCK_BYTES):
        content = view[start : start + BLOCK_BYTES]
        block = compress_block(content)
        if len(block) < len(content):
            parts.append(len(block).to_bytes(4, "little"))
            parts.append(block)
        else:
            parts.append((len(content) | _STORED).to_bytes(4, "little"))
            parts.append(content)
    parts.append(_END_MARK)
    return b"".join(parts)
