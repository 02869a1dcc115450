"""Where the chunks of a segment are in its log object. The format is Aiven's plugin's.

All chunks of the segment file have the same size, apart from the last one. The chunks in the object
have the same size too ("fixed"), or, if they are compressed, one each ("variable").

A compressed chunk is one zstd frame with the size of its content, which Aiven's plugin needs to
decompress it. The package `zstandard` comes with the extra `tiered`. It is imported with the first
compressed segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ottla.storage.remote.remote_storage import RemoteStorageError

if TYPE_CHECKING:
    from types import ModuleType

MAX_INT32 = 0x7FFFFFFF
# 1 KiB chunks of a segment of 2 GiB. A manifest with more would need much memory to read.
MAX_CHUNKS = 1 << 21
# As the plugin has it: an index of all chunks is never that large.
MAX_ENCODED_SIZES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of the segment file, and the range of the object with its content."""

    number: int
    original_position: int
    original_size: int
    position: int
    size: int


class ChunkIndex:
    """`sizes` are the sizes of the chunks in the object. Sizes of a file below 2 GiB, in bytes.

    `fixed_size` is the size of all but the last chunk in the object, None for a variable index.
    Raises ValueError for sizes that do not fit together.
    """

    def __init__(
        self,
        original_chunk_size: int,
        original_file_size: int,
        sizes: Sequence[int],
        fixed_size: int | None,
    ) -> None:
        count = chunk_count(original_chunk_size, original_file_size)
        if len(sizes) != count:
            raise ValueError(
                f"{len(sizes)} chunks of {original_chunk_size} bytes for a file with"
                f" {original_file_size} bytes, which has {count}"
            )
        if min(sizes) < 0:
            raise ValueError("a chunk has a negative size")
        self.original_chunk_size = original_chunk_size
        self.original_file_size = original_file_size
        self.fixed_size = fixed_size
        self.sizes = sizes
        self._positions = list(accumulate(sizes, initial=0))
        if self._positions[-1] > MAX_INT32:
            raise ValueError(f"the object has {self._positions[-1]} bytes, at most 2 GiB are valid")

    @classmethod
    def fixed(
        cls, original_chunk_size: int, original_file_size: int, fixed_size: int, final_size: int
    ) -> ChunkIndex:
        count = chunk_count(original_chunk_size, original_file_size)
        sizes = [fixed_size] * (count - 1) + [final_size]
        return cls(original_chunk_size, original_file_size, sizes, fixed_size)

    @property
    def object_size(self) -> int:
        return self._positions[-1]

    def __len__(self) -> int:
        return len(self.sizes)

    def chunk(self, number: int) -> Chunk:
        start = number * self.original_chunk_size
        return Chunk(
            number,
            start,
            min(self.original_chunk_size, self.original_file_size - start),
            self._positions[number],
            self.sizes[number],
        )

    def chunk_numbers(self, start_position: int, end_position: int) -> range:
        """The chunks with the bytes of the segment file from the start to before the end."""
        end_position = min(end_position, self.original_file_size)
        if start_position >= end_position:
            return range(0)
        last = (end_position - 1) // self.original_chunk_size
        return range(start_position // self.original_chunk_size, last + 1)


def chunk_count(original_chunk_size: int, original_file_size: int) -> int:
    """An empty file has one empty chunk. Raises ValueError for invalid sizes."""
    if not 0 < original_chunk_size <= MAX_INT32 or not 0 <= original_file_size <= MAX_INT32:
        raise ValueError(
            f"a file with {original_file_size} bytes cannot have chunks of {original_chunk_size}"
        )
    count = max(1, -(-original_file_size // original_chunk_size))
    if count > MAX_CHUNKS:
        raise ValueError(f"{count} chunks, at most {MAX_CHUNKS} are valid")
    return count


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """All but the last size, which may be much smaller, are stored as the difference to the
    smallest one, in as few bytes as the largest difference needs."""
    count = len(sizes)
    last = sizes[-1].to_bytes(4, "big")
    if count == 1:
        return count.to_bytes(4, "big") + last
    base = min(sizes[:-1])
    width = max(1, ((max(sizes[:-1]) - base).bit_length() + 7) // 8)
    values = b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return b"".join(
        (count.to_bytes(4, "big"), base.to_bytes(4, "big"), bytes([width]), values, last)
    )


def decode_sizes(data: bytes) -> list[int]:
    """Raise ValueError."""
    count = int.from_bytes(data[:4], "big")
    if count == 1 and len(data) == 8:
        return [int.from_bytes(data[4:], "big")]
    width = data[8] if len(data) > 8 else 0
    if count < 2 or not 1 <= width <= 4 or len(data) != 13 + (count - 1) * width:
        raise ValueError(f"{len(data)} bytes cannot be the sizes of {count} chunks")
    base = int.from_bytes(data[4:8], "big")
    end = len(data) - 4
    sizes = [
        base + int.from_bytes(data[position : position + width], "big")
        for position in range(9, end, width)
    ]
    sizes.append(int.from_bytes(data[end:], "big"))
    return sizes


def compress(content: bytes | memoryview) -> bytes:
    """One frame. Raises RemoteStorageError if the package is not installed."""
    compressed: bytes = _zstandard().ZstdCompressor(write_content_size=True).compress(content)
    return compressed


def decompress(frame: bytes | memoryview, max_size: int) -> bytes:
    """The content of one frame.

    Raises ValueError if the frame is invalid, has no size in its header, or one above `max_size`
    bytes; no memory is allocated then. Raises RemoteStorageError if the package is not installed.
    """
    zstandard = _zstandard()
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= max_size:
            raise ValueError(f"a compressed chunk of {size} bytes, expected at most {max_size}")
        content: bytes = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed chunk is invalid: {error}") from None
    if len(content) != size:
        raise ValueError(f"a compressed chunk has {len(content)} bytes, expected {size}")
    return content


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise RemoteStorageError(
            "Compressed segments need the package zstandard: pip install 'ottla[tiered]'"
        ) from None
    return zstandard
