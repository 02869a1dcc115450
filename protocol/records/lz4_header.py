"""The header of lz4 frames: its checksum, right and as Kafka's messages of magic 0 have it, and
where a frame ends.

A frame begins with the magic number (4 bytes), FLG, BD, an optional content size (8) and
dictionary id (4), and one byte of checksum: the second byte of the xxHash32 over everything
between magic number and checksum. The first Kafka releases put the magic number under the hash as
well (KAFKA-3160), and messages of magic 0 have been written like that ever since.
"""

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
    """What the first bytes of a frame tell without unpacking it; raises InvalidRecordError.

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
