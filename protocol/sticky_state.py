"""The partitions that a member of a sticky group had: the user data of both sticky assignors.

The eager assignor writes ``[topic, [partition]], generation``; the cooperative one only the
generation, because the owned partitions are part of its subscription.
"""

from collections.abc import Sequence
from struct import Struct, error
from typing import NamedTuple

from ottla.protocol.consumer_protocol import Subscription, group_by_topic
from ottla.protocol.topics import TopicPartition

NO_GENERATION = -1

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class MemberState(NamedTuple):
    """``generation`` is None when the member did not tell one at all."""

    partitions: Sequence[TopicPartition]
    generation: int | None


def encode_sticky_state(partitions: list[TopicPartition], generation: int) -> bytes:
    """The user data of a member of an eager sticky group."""
    grouped = group_by_topic(partitions)
    parts = [_INT32.pack(len(grouped))]
    for topic, numbers in grouped.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(numbers)))
        parts += (_INT32.pack(number) for number in numbers)
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def encode_cooperative_state(generation: int) -> bytes:
    """The user data of a member of a cooperative sticky group."""
    return _INT32.pack(generation)


def read_sticky_state(subscription: Subscription) -> MemberState:
    """The content of the user data; nothing owned if it cannot be read."""
    data = subscription.user_data
    if not data:
        return MemberState([], None)
    try:
        partitions, position = _read_partitions(data)
    except (error, ValueError):
        return MemberState([], NO_GENERATION)
    if len(data) - position < _INT32.size:
        return MemberState(partitions, None)  # the first version of the format had no generation
    return MemberState(partitions, _INT32.unpack_from(data, position)[0])


def _read_partitions(data: bytes) -> tuple[list[TopicPartition], int]:
    partitions: list[TopicPartition] = []
    (topic_count,) = _INT32.unpack_from(data, 0)
    position = 4
    # Reading past the end raises, so no count is believed further than the data goes.
    for _ in range(topic_count):
        (size,) = _INT16.unpack_from(data, position)
        position += 2
        if size < 0 or size > len(data) - position:
            raise ValueError
        topic = data[position : position + size].decode()
        position += size
        (count,) = _INT32.unpack_from(data, position)
        position += 4
        for _ in range(count):
            partitions.append(TopicPartition(topic, _INT32.unpack_from(data, position)[0]))
            position += 4
    return partitions, position


def read_cooperative_state(subscription: Subscription) -> MemberState:
    """What the subscription holds, or the user data of members older than its version 2."""
    owned = subscription.owned_partitions
    if subscription.generation_id >= 0:
        return MemberState(owned, subscription.generation_id)
    data = subscription.user_data
    if data is None:
        return MemberState(owned, None)
    if len(data) < _INT32.size:
        return MemberState(owned, NO_GENERATION)
    return MemberState(owned, _INT32.unpack_from(data, 0)[0])
