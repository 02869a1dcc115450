"""How many bytes a zstd stream can hold at most, from its headers alone.

Java's clients write frames without a content size, so the size of the output is not known before;
but each block has a header that states its size or is limited to 128 KiB (RFC 8878, 3.1.1.2).
Adding those up gives a bound that is close for large data, costs a step per block, and lets the
decompressor write into one buffer of the right size instead of trusting the stream.
"""

from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import CorruptRecordError

_FRAME_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_MAX_BLOCK_BYTES = 128 * 1024
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_RUN_LENGTH = 1
_COMPRESSED = 2


def _cut_short() -> CorruptRecordError:
    return CorruptRecordError("zstd data cannot be decompressed: it ends too early")


def largest_content_bytes(data: Buffer) -> int:
    """An upper bound of the decompressed size of all frames in ``data``.

    Exact when the frames tell their content size. Raises CorruptRecordError when frames and blocks
    do not add up to the length of ``data``. What is inside the blocks is not read.
    """
    end = len(data)
    position = 0
    bound = 0
    frames = 0
    while position < end:
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        elif magic == _FRAME_MAGIC and end - position >= 6:
            frames += 1
            position, frame_bound = _frame(data, position + 4, end)
            bound += frame_bound
        else:
            raise CorruptRecordError("zstd data cannot be decompressed: there is no frame header")
    if position > end or frames == 0:
        raise _cut_short()
    return bound


def _frame(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """(position after the frame, largest content) of the frame whose descriptor is at
    ``position``.
    """
    descriptor = data[position]
    single_segment = descriptor & 0x20 != 0
    position += 1
    if not single_segment:
        exponent, mantissa = data[position] >> 3, data[position] & 7
        window = (1 << (10 + exponent)) // 8 * (8 + mantissa)
        position += 1
    position += _DICTIONARY_ID_BYTES[descriptor & 3]
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if single_segment else 0)
    content = int.from_bytes(data[position : position + size_bytes], "little")
    if size_bytes == 2:
        content += 256
    position += size_bytes
    if single_segment:
        window = content
    position, bound = _blocks(data, position, end, min(window, _MAX_BLOCK_BYTES))
    if descriptor & 0x04:
        position += 4  # content checksum
    if position > end:
        raise _cut_short()
    return position, min(bound, content) if size_bytes else bound


def _blocks(data: Buffer, position: int, end: int, max_block_bytes: int) -> tuple[int, int]:
    bound = 0
    while True:
        if end - position < 3:
            raise _cut_short()
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        position += 3
        kind = (header >> 1) & 3
        size = header >> 3
        if kind > _COMPRESSED or size > max_block_bytes:
            raise CorruptRecordError("zstd data cannot be decompressed: impossible block header")
        bound += max_block_bytes if kind == _COMPRESSED else size
        position += 1 if kind == _RUN_LENGTH else size
        if position > end:
            raise _cut_short()
        if header & 1:
            return position, bound
