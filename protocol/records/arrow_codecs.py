"""Kafka's codecs by pyarrow, for Python processes that have neither cramjam nor lz4.

This is what a Python worker of Spark brings along. The functions here compress and decompress;
framings, bounds and error texts are the business of `ottla.protocol.records.compression`.
pyarrow raises OSError or ValueError for damaged data.
"""

from typing import Any

import pyarrow as pa

from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.frames import frame_of_blocks

_LZ4_LEVEL_MIN, _LZ4_LEVEL_MAX = 1, 12  # what pyarrow takes; levels below 3 are all the fast one


def is_available(codec: str) -> bool:
    """Whether this pyarrow was built with the codec, which has Kafka's name."""
    names = ("lz4", "lz4_raw") if codec == "lz4" else (codec,)
    return all(pa.Codec.is_available(name) for name in names)


def compress_snappy_block(data: Buffer) -> bytes:
    """One raw block, as xerial framing holds them."""
    compressed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return compressed


def decompress_snappy_block(block: Buffer, size: int) -> bytes:
    """The content of one raw block; `size` is the size that stands at its beginning."""
    found: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return found


def compress_lz4_frame(data: Buffer, level: int | None) -> bytes:
    """A frame of independent blocks of 64 KiB; pyarrow's own frames have linked blocks."""
    if level is None:
        codec = pa.Codec("lz4_raw")
    else:
        level = min(max(level, _LZ4_LEVEL_MIN), _LZ4_LEVEL_MAX)
        codec = pa.Codec("lz4_raw", compression_level=level)
    return frame_of_blocks(data, lambda content: _block(codec, content))


def _block(codec: Any, content: memoryview) -> bytes:
    block: bytes = codec.compress(content, asbytes=True)
    return block


def compress_zstd(data: Buffer, level: int) -> bytes:
    """One frame."""
    compressed: bytes = pa.Codec("zstd", compression_level=level).compress(data, asbytes=True)
    return compressed


def open_stream(codec: str, data: Buffer) -> Any:
    """A stream over the content of one or more frames of lz4 or zstd.

    `read(n)` decompresses no more than it returns and a constant; it returns b"" at the end.
    """
    return pa.CompressedInputStream(pa.BufferReader(data), codec)
