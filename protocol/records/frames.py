"""Frames of lz4 and zstd, read and written without the libraries that compress.

An lz4 frame begins with the magic number (4 bytes), FLG, BD, an optional content size (8) and
dictionary id (4), and one byte of checksum: the second byte of the xxHash32 of everything between
the magic number and the checksum. The first releases of Kafka included the magic number in the
hash (KAFKA-3160), and messages of magic 0 still do. Clients in Java cannot read frames with linked
blocks; `frame_of_blocks` builds a frame for libraries that write no other ones.

Clients in Java write zstd frames without a content size. Each block has a header that states its
size or is limited to 128 KiB (RFC 8878, 3.1.1.2): their sum bounds the size of the content. The
bound is close for large data and costs one step per block, so the decompressor writes into one
buffer of the right size and need not trust the stream.
"""

from collections.abc import Callable

from ottla.protocol.records.crc32c import Buffer
from ottla.protocol.records.errors import CorruptRecordError, InvalidRecordError

_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_HEADER_SIZE_MIN = 7
_VERSION_MASK, _VERSION_1 = 0xC0, 0x40
_INDEPENDENT_BLOCKS = 0x20
_HAS_CONTENT_SIZE = 0x08
_HAS_DICTIONARY_ID = 0x01
_HAS_BLOCK_CHECKSUMS = 0x10
_HAS_CONTENT_CHECKSUM = 0x04
_STORED = 1 << 31  # marks a block that is not compressed

_PRIME_1 = 2654435761
_PRIME_2 = 2246822519
_PRIME_3 = 3266489917
_PRIME_4 = 668265263
_PRIME_5 = 374761393
_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def xxhash32(data: bytes) -> int:
    """xxHash32 with seed 0; meant for the few bytes of a frame header."""
    position = 0
    if len(data) >= 16:
        lanes = [(_PRIME_1 + _PRIME_2) & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK]
        while len(data) - position >= 16:
            for lane in range(4):
                word = int.from_bytes(data[position : position + 4], "little")
                mixed = _rotate((lanes[lane] + word * _PRIME_2) & _MASK, 13)
                lanes[lane] = mixed * _PRIME_1 & _MASK
                position += 4
        rotations = zip(lanes, (1, 7, 12, 18), strict=True)
        value = sum(_rotate(lane, bits) for lane, bits in rotations) & _MASK
    else:
        value = _PRIME_5
    value = (value + len(data)) & _MASK
    while len(data) - position >= 4:
        word = int.from_bytes(data[position : position + 4], "little")
        value = _rotate((value + word * _PRIME_3) & _MASK, 17) * _PRIME_4 & _MASK
        position += 4
    for byte in data[position:]:
        value = _rotate((value + byte * _PRIME_5) & _MASK, 11) * _PRIME_1 & _MASK
    value = (value ^ (value >> 15)) * _PRIME_2 & _MASK
    value = (value ^ (value >> 13)) * _PRIME_3 & _MASK
    return value ^ (value >> 16)


def _checksum_position(data: Buffer) -> int:
    if len(data) < 7 or data[:4] != _FRAME_MAGIC:
        raise CorruptRecordError("lz4 data cannot be decompressed: there is no frame header")
    flags = data[4]
    position = 6
    if flags & _HAS_CONTENT_SIZE:
        position += 8
    if flags & _HAS_DICTIONARY_ID:
        position += 4
    if position >= len(data):
        raise CorruptRecordError("lz4 data cannot be decompressed: the header is cut short")
    return position


def with_broken_checksum(data: bytes) -> bytes:
    """The frame with the checksum that magic 0 wants."""
    position = _checksum_position(data)
    checksum = (xxhash32(data[:position]) >> 8) & 0xFF
    return data[:position] + bytes((checksum,)) + data[position + 1 :]


def with_right_checksum(data: Buffer) -> bytes:
    """The frame with the checksum of the lz4 specification, whatever it had."""
    position = _checksum_position(data)
    fixed = bytearray(data)
    fixed[position] = (xxhash32(bytes(fixed[4:position])) >> 8) & 0xFF
    return bytes(fixed)


def frame_end(data: Buffer) -> int:
    """The position behind the first frame. Raises CorruptRecordError if that is cut short."""
    position = _checksum_position(data) + 1
    flags = data[4]
    checksum_bytes = 4 if flags & _HAS_BLOCK_CHECKSUMS else 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if not size:
            position += 4 if flags & _HAS_CONTENT_CHECKSUM else 0
            break
        position += (size & ~_STORED) + checksum_bytes
    else:
        position = len(data) + 1
    if position > len(data):
        raise CorruptRecordError("lz4 data cannot be decompressed: the frame ends too early")
    return position


def is_plain_frame(data: Buffer, position: int) -> bool:
    """Whether a frame with independent blocks begins there; a quick look for the common case."""
    return (
        len(data) >= position + _HEADER_SIZE_MIN
        and data[position + 4] & (_VERSION_MASK | _INDEPENDENT_BLOCKS)
        == _VERSION_1 | _INDEPENDENT_BLOCKS
        and bytes(data[position : position + 4]) == _FRAME_MAGIC
    )


def check_frame(data: Buffer) -> None:
    """Check the first bytes of a frame without unpacking it. Raises InvalidRecordError.

    Java's clients follow no blocks that refer to the blocks before them: stored, such a batch
    would stop every one of them. Kafka decompresses it and responds with UNKNOWN_SERVER_ERROR.
    """
    if len(data) < _HEADER_SIZE_MIN or bytes(data[:4]) != _FRAME_MAGIC:
        raise InvalidRecordError("the lz4 data of a batch does not begin with a frame")
    flags = data[4]
    if flags & _VERSION_MASK != _VERSION_1:
        raise InvalidRecordError("the lz4 frame of a batch is of an unknown version")
    if not flags & _INDEPENDENT_BLOCKS:
        raise InvalidRecordError(
            "the lz4 frame of a batch has linked blocks, which Java clients cannot read: "
            "compress with independent blocks"
        )


BLOCK_BYTES = 64 * 1024
# Version 1, independent blocks, no checksums, no content size; blocks of at most 64 KiB.
_DESCRIPTOR = b"\x60\x40"
_END_MARK = bytes(4)


def frame_of_blocks(data: Buffer, compress_block: Callable[[memoryview], Buffer]) -> bytes:
    """A frame of independent blocks of 64 KiB, each as `compress_block` returns it, or stored if
    that is not shorter."""
    checksum = (xxhash32(_DESCRIPTOR) >> 8) & 0xFF
    parts: list[Buffer] = [_FRAME_MAGIC, _DESCRIPTOR, bytes((checksum,))]
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


_ZSTD_FRAME_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_MAX_BLOCK_BYTES = 128 * 1024
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_RUN_LENGTH = 1
_COMPRESSED = 2


def _cut_short() -> CorruptRecordError:
    return CorruptRecordError("zstd data cannot be decompressed: it ends too early")


def largest_content_bytes(data: Buffer) -> int:
    """An upper bound of the decompressed size of all frames in `data`.

    Exact when the frames tell their content size. Raises CorruptRecordError when frames and blocks
    do not add up to the length of `data`. What is inside the blocks is not read.
    """
    end = len(data)
    position = 0
    bound = 0
    frames = 0
    while position < end:
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        elif magic == _ZSTD_FRAME_MAGIC and end - position >= 6:
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
    `position`.
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
