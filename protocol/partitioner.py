"""Which partition a record goes to, as Kafka's Java producer decides it.

Records with a key go to the partition of the murmur2 hash of the key, so that equal keys are in one
partition, whatever the client. Records without one stick to a partition until about a batch of
bytes has gone there, and then to another chosen at random (KIP-480, KIP-794): full batches, evenly
spread.
"""

from collections.abc import Callable, Sequence
from struct import unpack_from

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF

DEFAULT_BATCH_SIZE = 16384  # Kafka's batch.size


def murmur2(data: bytes) -> int:
    """The hash as Java has it: a signed 32-bit integer."""
    length = len(data)
    multiplier, mask = _MULTIPLIER, _MASK
    value = _SEED ^ length
    words = length >> 2
    for word in unpack_from(f"<{words}I", data):
        mixed = word * multiplier & mask
        value = (value * multiplier & mask) ^ ((mixed ^ (mixed >> 24)) * multiplier & mask)
    rest = data[words << 2 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * multiplier & mask
    value = (value ^ (value >> 13)) * multiplier & mask
    value ^= value >> 15
    return value - ((value & 0x80000000) << 1)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key among ``partition_count``, whether they have leaders or not."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class DefaultPartitioner:
    """The partitioner of one producer; keeps a sticky partition for each topic without keys.

    ``choose`` picks an index below its argument, at random unless given.
    """

    def __init__(
        self,
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        ignore_keys: bool = False,
        choose: Callable[[int], int] | None = None,
    ) -> None:
        if choose is None:
            from random import randrange

            choose = randrange
        self._batch_size = batch_size
        self._ignore_keys = ignore_keys
        self._choose = choose
        self._sticky: dict[str, tuple[int, int]] = {}  # topic: (partition, bytes so far)

    def partition(
        self,
        topic: str,
        key: bytes | None,
        record_bytes: int,
        partition_count: int,
        available: Sequence[int] | None = None,
    ) -> int:
        """The partition for a record of ``record_bytes`` bytes.

        ``available`` are the partitions that have a leader; records without a key go to those, and
        to any partition when there are none. ``ignore_keys`` (``partitioner.ignore.keys``) treats
        all records so.
        """
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, partition_count)
        candidates: Sequence[int] = available or range(partition_count)
        partition, sent = self._sticky.get(topic, (-1, 0))
        if partition not in candidates or sent >= self._batch_size:
            partition, sent = candidates[self._choose(len(candidates))], 0
        self._sticky[topic] = (partition, sent + record_bytes)
        return partition
