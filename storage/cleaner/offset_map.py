"""The newest offset of each key, in bounded memory. Kafka's `OffsetMap`."""

from __future__ import annotations

from bisect import bisect_left
from hashlib import md5

# Measured upper bound of the memory of one key of up to _PLAIN_BYTES in a dict of CPython: the key,
# the offset, and its share of the table, averaged over the growth of the table.
BYTES_PER_KEY = 230
# Keys up to this length are stored as they are, longer ones as their digest.
_PLAIN_BYTES = 32

ShortKey = bytes | int | None


class OffsetMap:
    """Keys and their newest offsets, for as many keys as `memory_bytes` allow.

    Keys of more than 32 bytes are stored as their MD5 digest, which Kafka does with all keys. Two
    keys with the same digest would be treated as one; that does not happen by chance.
    """

    __slots__ = ("_memory_bytes", "capacity", "latest_offset", "offsets")

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self.capacity = memory_bytes // BYTES_PER_KEY
        if self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes are too few for a single key")
        # Keys as returned by `short_keys`.
        self.offsets: dict[ShortKey, int] = {}
        # Everything up to this offset is in the map.
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self.offsets)

    def put_all(self, keys: list[bytes | None], offsets: list[int], from_offset: int) -> bool:
        """Add the records at or above `from_offset`. False when one did not fit."""
        known = self.offsets
        if len(known) + len(keys) > self.capacity:
            return self._put_up_to_capacity(keys, offsets, from_offset)
        if offsets and offsets[0] < from_offset:  # they ascend
            first = bisect_left(offsets, from_offset)
            keys, offsets = keys[first:], offsets[first:]
        known.update(zip(short_keys(keys), offsets, strict=True))
        known.pop(None, None)
        return True

    def _put_up_to_capacity(
        self, keys: list[bytes | None], offsets: list[int], from_offset: int
    ) -> bool:
        known = self.offsets
        for key, offset in zip(short_keys(keys), offsets, strict=True):
            if key is None or offset < from_offset:
                continue
            if len(known) >= self.capacity and key not in known:
                return False
            known[key] = offset
        return True

    def newest_flags(self, first_offset: int) -> bytearray | None:
        """For each offset from `first_offset` to `latest_offset`, 1 if it is the newest of a key.

        All records from `first_offset` on must be in the map. None if its memory does not suffice.
        """
        size = self.latest_offset + 1 - first_offset
        if size > self._memory_bytes - len(self.offsets) * BYTES_PER_KEY:
            return None
        flags = bytearray(max(size, 0))
        for offset in self.offsets.values():
            if first_offset <= offset <= self.latest_offset:
                flags[offset - first_offset] = 1
        return flags

    def newest(self, key: bytes) -> int:
        """The newest offset of the key, or -1."""
        return self.offsets.get(short_keys([key])[0], -1)


def short_keys(keys: list[bytes | None]) -> list[ShortKey]:
    """The keys as they are in the map: the bytes, or the digest as a number."""
    if None not in keys and max(map(len, keys), default=0) <= _PLAIN_BYTES:  # type: ignore[arg-type]
        return keys  # type: ignore[return-value]
    return [
        key if key is None or len(key) <= _PLAIN_BYTES else int.from_bytes(md5(key).digest())
        for key in keys
    ]
