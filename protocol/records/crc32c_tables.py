"""CRC-32C without a C extension: correct everywhere, and slower than the package `crc32c`.

A checksum is a linear function of the bytes, so the register after a block is the XOR of what each
of its 32-bit words becomes when it is followed by zeros up to the end of the block. With numpy,
neighbouring words are combined in pairs, then the pairs in pairs, and so on: every step advances
half of the words by the same number of zero bytes, which is four table look-ups a word. Short
buffers, and all buffers where numpy is not installed, take one look-up a byte in plain Python.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits reversed
_MASK = 0xFFFFFFFF
_WORD_BYTES = 4
# Blocks of this size stay in a processor's cache, and bound the memory.
_BLOCK_BYTES = 1 << 16
# Below this, plain Python is faster.
_NUMPY_BYTES_MIN = 1 << 11


def crc32c(data: bytes | bytearray | memoryview, value: int = 0, /) -> int:
    """The checksum of any bytes-like object; of all bytes so far if `value` is that of those
    before."""
    register = value ^ _MASK
    view = memoryview(data)
    numpy = _numpy() if len(view) >= _NUMPY_BYTES_MIN else None
    if numpy is None:
        return _after_bytes(register, view) ^ _MASK
    for start in range(0, len(view), _BLOCK_BYTES):
        block = view[start : start + _BLOCK_BYTES]
        if len(block) < _NUMPY_BYTES_MIN:
            register = _after_bytes(register, block)
        else:
            register = _after_block(numpy, register, block)
    return register ^ _MASK


@cache
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


@cache
def _byte_table() -> tuple[int, ...]:
    """The change of the register for each value of its lowest byte when a byte follows."""
    table = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        table.append(register)
    return tuple(table)


def _after_bytes(register: int, data: memoryview) -> int:
    table = _byte_table()
    for byte in data:
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register


@cache
def _zeros_tables(level: int) -> Any:
    """Tables that advance a register by 4 << `level` zero bytes, one for each of its bytes."""
    numpy = _numpy()
    values = numpy.arange(256, dtype=numpy.uint32)
    tables = numpy.stack([values << numpy.uint32(shift) for shift in (0, 8, 16, 24)])
    if level:
        half = _zeros_tables(level - 1)
        return _advanced(half, _advanced(half, tables))
    by_byte = numpy.array(_byte_table(), numpy.uint32)
    for _ in range(_WORD_BYTES):
        tables = by_byte[tables & numpy.uint32(0xFF)] ^ tables >> numpy.uint32(8)
    return tables


def _advanced(tables: Any, words: Any) -> Any:
    """The words, each advanced by the zeros of the tables."""
    words = words.astype("<u4", copy=False)  # a copy on big-endian machines alone
    octets = words.view("u1").reshape(*words.shape, _WORD_BYTES)
    advanced = tables[0][octets[..., 0]]
    for place in range(1, _WORD_BYTES):
        advanced ^= tables[place][octets[..., place]]
    return advanced


def _after_block(numpy: Any, register: int, block: memoryview) -> int:
    """The register after at least four bytes; zeros in front of them change nothing."""
    words_count = 1
    level = 0
    while words_count * _WORD_BYTES < len(block):
        words_count *= 2
        level += 1
    octets = numpy.zeros(words_count * _WORD_BYTES, numpy.uint8)
    first = len(octets) - len(block)
    octets[first:] = numpy.frombuffer(block, numpy.uint8)
    # The register so far counts like a word that is added to the first four bytes.
    octets[first : first + _WORD_BYTES] ^= numpy.frombuffer(
        register.to_bytes(_WORD_BYTES, "little"), numpy.uint8
    )
    words = octets.view("<u4")
    for step in range(level):
        words = _advanced(_zeros_tables(step), words[0::2].copy()) ^ words[1::2]
    return int(_advanced(_zeros_tables(0), words)[0])
