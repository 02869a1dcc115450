"""The newest offset of each key, in bounded memory: what compaction decides by."""

from __future__ import annotations

from hashlib import md5

# What one key of up to _PLAIN_BYTES costs at most in a dict of CPython, on the average of growing:
# the key, the offset, its share of the table (measured).
BYTES_PER_KEY = 230
# Keys up to this length stand for themselves; longer ones for their digest.
_PLAIN_BYTES = 32

ShortKey = bytes | int | None


class OffsetMap:
    """Keys and their newest offsets, for as many keys as `memory_bytes` allow.

    Keys of more than 32 bytes are kept as their MD5 digest, as Kafka does with all of them. Two
    such keys with the same digest would be taken for one; that does not happen by chance.
    """

    __slots__ = ("capacity", "latest_offset", "offsets")

    def __init__(self, memory_bytes: int) -> None:
        self.capacity = memory_bytes // BYTES_PER_KEY
        if self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes are too few to compact anything")
        # By what `short_keys` makes of a key.
        self.offsets: dict[ShortKey, int] = {}
        # Everything up to here has been put in.
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self.offsets)

    def put_all(self, keys: list[bytes | None], offsets: list[int], from_offset: int) -> bool:
        """Notes the records at or above `from_offset`; False when one did not fit any more."""
        known = self.offsets
        if len(known) + len(keys) > self.capacity:
            return self._put_carefully(keys, offsets, from_offset)
        for key, offset in zip(short_keys(keys), offsets, strict=True):
            if key is not None and offset >= from_offset:
                known[key] = offset
        return True

    def _put_carefully(
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

    def newest(self, key: bytes) -> int:
        """The newest offset of the key, or -1."""
        return self.offsets.get(short_keys([key])[0], -1)


def short_keys(keys: list[bytes | None]) -> list[ShortKey]:
    """What stands for the keys in the map: bytes for themselves, a number for a digest."""
    return [
        key if key is None or len(key) <= _PLAIN_BYTES else int.from_bytes(md5(key).digest())
        for key in keys
    ]
