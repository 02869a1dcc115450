"""`String.hashCode` and the iteration order of Java's hash tables.

Kafka's sticky assignors iterate over such tables, so the order decides the assignment. In a key
store it decides which key TLS uses: the `SunX509` key manager puts the keys into a `HashMap` by
alias and takes the first one of a kind that the client accepts (`SunX509KeyManagerImpl`).
"""

from collections.abc import Iterable, Sequence

from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

_MASK = 0xFFFFFFFF
_TABLE_SIZE = 11


def string_hash(text: str) -> int:
    """Return `String.hashCode`: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK
    return value - (1 << 32) if value >> 31 else value


def _buckets(size: int) -> int:
    buckets = 16
    while size > buckets * 3 // 4:
        buckets *= 2
    return buckets


def _bucket(value: int, buckets: int) -> int:
    value &= _MASK
    return (value ^ (value >> 16)) & (buckets - 1)


def hash_map_order(keys: Iterable[str]) -> Steps[list[str]]:
    """Return the keys as a HashMap iterates over them, if they were put into it in this order."""
    names = list(dict.fromkeys(keys))
    buckets = _buckets(len(names))
    places: dict[str, int] = {}
    for name in names:
        places[name] = _bucket(string_hash(name), buckets)
        yield
    return sorted(names, key=places.__getitem__)


def hashtable_order(names: Sequence[str]) -> list[str]:
    """Return the names as a `Hashtable` iterates over them, which is how Java reads a JKS store."""
    found = list(dict.fromkeys(names))
    table: list[list[str]] = [[] for _ in range(_TABLE_SIZE)]
    for count, name in enumerate(found):
        if count >= len(table) * 3 // 4:
            table = _rehashed(table)
        _chain(table, name).insert(0, name)
    return [name for chain in reversed(table) for name in chain]


def _chain(table: list[list[str]], name: str) -> list[str]:
    return table[(string_hash(name) & 0x7FFFFFFF) % len(table)]


def _rehashed(table: list[list[str]]) -> list[list[str]]:
    larger: list[list[str]] = [[] for _ in range(len(table) * 2 + 1)]
    for chain in reversed(table):
        for name in chain:
            _chain(larger, name).insert(0, name)
    return larger


def first_of_hash_set(partitions: Iterable[TopicPartition]) -> TopicPartition:
    """Return the first element that a HashSet of Kafka's TopicPartition iterates over.

    There must be at least one.
    """
    found = list(partitions)
    buckets = _buckets(len(found))

    def bucket(partition: TopicPartition) -> int:
        value = 31 * (31 + partition.partition) + string_hash(partition.topic)
        return _bucket(value, buckets)

    return min(found, key=bucket)
