"""The iteration order of Java's hash tables.

Kafka's sticky assignors iterate over such tables, so the order decides the assignment.
"""

from collections.abc import Iterable

from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

_MASK = 0xFFFFFFFF


def string_hash(text: str) -> int:
    """Return `String.hashCode`, unsigned."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK
    return value


def _buckets(size: int) -> int:
    buckets = 16
    while size > buckets * 3 // 4:
        buckets *= 2
    return buckets


def _bucket(value: int, buckets: int) -> int:
    return (value ^ (value >> 16)) & (buckets - 1)


def hash_map_order(keys: Iterable[str]) -> Steps[list[str]]:
    """Return the keys as a HashMap iterates over them, if they were put into it in this order."""
    names = list(keys)
    buckets = _buckets(len(names))
    places: dict[str, int] = {}
    for name in names:
        places[name] = _bucket(string_hash(name), buckets)
        yield
    return sorted(names, key=places.__getitem__)


def first_of_hash_set(partitions: Iterable[TopicPartition]) -> TopicPartition:
    """Return the first element that a HashSet of Kafka's TopicPartition iterates over.

    There must be at least one.
    """
    found = list(partitions)
    buckets = _buckets(len(found))

    def bucket(partition: TopicPartition) -> int:
        value = 31 * (31 + partition.partition) + string_hash(partition.topic)
        return _bucket(value & _MASK, buckets)

    return min(found, key=bucket)
