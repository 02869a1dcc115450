"""As much of DER, the encoding of keys and certificates, as is read here: nested elements."""

from __future__ import annotations


def value_of(element: bytes) -> bytes:
    """The content of one element. Raises ValueError when it is cut off."""
    start, end = _bounds(element, 0)
    return element[start:end]


def children(content: bytes) -> list[bytes]:
    """The elements one after the other, each with its tag and length. Raises ValueError."""
    found: list[bytes] = []
    position = 0
    while position < len(content):
        _, end = _bounds(content, position)
        found.append(content[position:end])
        position = end
    return found


def encoded(tag: int, content: bytes) -> bytes:
    """One element."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _bounds(data: bytes, position: int) -> tuple[int, int]:
    """Where the content of the element at `position` begins and ends."""
    if position + 2 > len(data):
        raise ValueError("an element of DER is cut off")
    length = data[position + 1]
    start = position + 2
    if length & 0x80:
        size = length & 0x7F
        # Four bytes of length are more than any certificate; 0 is the indefinite form of BER.
        if not 1 <= size <= 4 or start + size > len(data):
            raise ValueError("an element of DER has no valid length")
        length = int.from_bytes(data[start : start + size], "big")
        start += size
    if start + length > len(data):
        raise ValueError("an element of DER is cut off")
    return start, start + length
