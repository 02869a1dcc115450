"""Which of several keys in a store Java uses: that of the first alias in the order of its maps.

Kafka's default `SunX509` key manager puts the keys of a store into a `HashMap` by alias, and takes
the first one of a kind that the client accepts (`SunX509KeyManagerImpl`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MAP_SIZE = 16
_TABLE_SIZE = 11
_MASK = 0xFFFFFFFF


def hash_map_order(names: Iterable[str]) -> list[str]:
    """The names as a `java.util.HashMap` lists them after they were added in this order."""
    found = list(dict.fromkeys(names))
    size = _MAP_SIZE
    while len(found) > size * 3 // 4:
        size *= 2
    return sorted(found, key=lambda name: _spread(java_hash(name)) & (size - 1))


def hashtable_order(names: Sequence[str]) -> list[str]:
    """The names as a `java.util.Hashtable` lists them, which is how Java reads a JKS store."""
    found = list(dict.fromkeys(names))
    buckets: list[list[str]] = [[] for _ in range(_TABLE_SIZE)]
    for count, name in enumerate(found):
        if count >= len(buckets) * 3 // 4:
            buckets = _rehashed(buckets)
        _bucket(buckets, name).insert(0, name)
    return [name for bucket in reversed(buckets) for name in bucket]


def java_hash(name: str) -> int:
    """`String.hashCode`, without its sign."""
    code = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for start in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[start : start + 2], "big")) & _MASK
    return code


def _spread(code: int) -> int:
    return code ^ (code >> 16)


def _bucket(buckets: list[list[str]], name: str) -> list[str]:
    return buckets[(java_hash(name) & 0x7FFFFFFF) % len(buckets)]


def _rehashed(buckets: list[list[str]]) -> list[list[str]]:
    larger: list[list[str]] = [[] for _ in range(len(buckets) * 2 + 1)]
    for bucket in reversed(buckets):
        for name in bucket:
            _bucket(larger, name).insert(0, name)
    return larger
