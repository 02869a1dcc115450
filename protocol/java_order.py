"""The order in which Java's hash tables give back what was put into them.

Kafka's sticky assignors walk over such tables, so the order decides who gets what.
"""

from collections.abc import Iterable

from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.topics import TopicPartition

_MASK = 0xFFFFFFFF
_NAMES_PER_STEP = 16  # 5 us for the id of a member


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
    return run_at_once(hash_map_order_in_steps(keys))


def hash_map_order_in_steps(keys: Iterable[str]) -> Steps[list[str]]:
    """As ``hash_map_order``."""
    names = list(keys)
    buckets = _buckets(len(names))
    places: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        places[name] = _bucket(string_hash(name), buckets)
        if not number % _NAMES_PER_STEP:
            yield
    return sorted(names, key=places.__getitem__)


def first_of_hash_set(partitions: Iterable[TopicPartition]) -> TopicPartition:
    """What a HashSet of Kafka's TopicPartition returns first; there must be one."""
    found = list(partitions)
    buckets = _buckets(len(found))

    def bucket(partition: TopicPartition) -> int:
        value = 31 * (31 + partition.partition) + string_hash(partition.topic)
        return _bucket(value & _MASK, buckets)

    return min(found, key=bucket)
