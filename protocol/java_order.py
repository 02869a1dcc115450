"""The order in which Java's hash tables give back what was put into them.

Kafka's sticky assignors walk over such tables, so the order decides who gets what.
"""

from collections.abc import Iterable

from ottla.protocol.topics import TopicPartition

_MASK = 0xFFFFFFFF


def string_hash(text: str) -> int:
    """String.hashCode, unsigned."""
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


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """The order in which a HashMap returns strings put into it in the order of ``keys``."""
    names = list(keys)
    buckets = _buckets(len(names))
    return sorted(names, key=lambda name: _bucket(string_hash(name), buckets))


def first_of_hash_set(partitions: Iterable[TopicPartition]) -> TopicPartition:
    """What a HashSet of Kafka's TopicPartition returns first; there must be one."""
    found = list(partitions)
    buckets = _buckets(len(found))

    def bucket(partition: TopicPartition) -> int:
        value = 31 * (31 + partition.partition) + string_hash(partition.topic)
        return _bucket(value & _MASK, buckets)

    return min(found, key=bucket)
