"""Zigzag varints as records of magic 2 use them (the same as in Protocol Buffers).

The readers of hot loops inline the one-byte case and come here for the rest.
"""

from ottla.protocol.records.errors import InvalidRecordError

_MAX_UNSIGNED_32 = 0xFFFFFFFF
_MAX_UNSIGNED_64 = 0xFFFFFFFFFFFFFFFF


def wrap_int64(value: int) -> int:
    """`value` as Java's long arithmetic has it: timestamps may be as far apart as they like."""
    return ((value + (1 << 63)) & _MAX_UNSIGNED_64) - (1 << 63)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """(value, position after it) of a 32-bit varint; at most 5 bytes.

    Raises InvalidRecordError when it is longer or larger, IndexError at the end of `data`:
    callers turn that into an error with the position.
    """
    value = data[position] & 0x7F
    shift = 0
    while data[position] >= 0x80:
        position += 1
        shift += 7
        if shift > 28:
            raise InvalidRecordError("a varint of a record is longer than 5 bytes")
        value |= (data[position] & 0x7F) << shift
    if value > _MAX_UNSIGNED_32:
        raise InvalidRecordError("a varint of a record does not fit into 32 bits")
    return (value >> 1) ^ -(value & 1), position + 1


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """(value, position after) of a 64-bit varint, 10 bytes at most; raises as `read_varint`."""
    value = data[position] & 0x7F
    shift = 0
    while data[position] >= 0x80:
        position += 1
        shift += 7
        if shift > 63:
            raise InvalidRecordError("a varint of a record is longer than 10 bytes")
        value |= (data[position] & 0x7F) << shift
    if value > _MAX_UNSIGNED_64:
        raise InvalidRecordError("a varint of a record does not fit into 64 bits")
    return (value >> 1) ^ -(value & 1), position + 1


def encode_varint(value: int) -> bytes:
    """The bytes of `value`, which must fit into 64 signed bits."""
    encoded = (value << 1) ^ (value >> 63)
    if encoded < 0x80:
        return encoded.to_bytes(1, "little")
    if encoded < 0x4000:
        return bytes((encoded & 0x7F | 0x80, encoded >> 7))
    out = bytearray()
    while encoded >= 0x80:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def varint_size(value: int) -> int:
    """The number of bytes `encode_varint` gives."""
    encoded = (value << 1) ^ (value >> 63)
    return max(1, (encoded.bit_length() + 6) // 7)
