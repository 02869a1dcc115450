"""The server-side assignors (KIP-848): `uniform` and `range`.

`uniform` is the sticky assignor: it balances the partitions and moves as few as possible. `range`
assigns each member a range of consecutive partitions of each topic, and co-partitions topics with
equal numbers of partitions. Both ignore racks.
"""

from collections.abc import Callable, Iterable, Mapping

from ottla.broker.groups.consumer.member import Assignment, ConsumerMember
from ottla.broker.groups.consumer.topic_catalog import TopicDescription
from ottla.protocol.assignors import assign_range
from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.sticky_assignment import assign_sticky
from ottla.protocol.sticky_state import MemberState
from ottla.protocol.topics import TopicPartition

UNIFORM = "uniform"
RANGE = "range"

Topics = Mapping[str, TopicDescription]
Names = dict[str, list[TopicPartition]]
_Assign = Callable[[dict[str, int], dict[str, Subscription], dict[str, MemberState]], Names]

_CURRENT_GENERATION = 1  # all targets have the same generation


def _uniform(
    counts: dict[str, int], wanted: dict[str, Subscription], states: dict[str, MemberState]
) -> Names:
    return assign_sticky(counts, wanted, states)[0]


def _range(
    counts: dict[str, int], wanted: dict[str, Subscription], states: dict[str, MemberState]
) -> Names:
    return assign_range(counts, wanted)


ASSIGNORS: dict[str, _Assign] = {UNIFORM: _uniform, RANGE: _range}
"""By name; the first is the default."""


def assign(
    assignor: str,
    members: Iterable[ConsumerMember],
    topics: Topics,
    subscriptions: Mapping[str, frozenset[str]],
    targets: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """The new target assignment of every member.

    `subscriptions` has the subscribed topics of each member, `targets` the previous targets.
    """
    names = {topic.topic_id: name for name, topic in topics.items()}
    wanted: dict[str, Subscription] = {}
    states: dict[str, MemberState] = {}
    for member in members:
        existing = sorted(name for name in subscriptions[member.member_id] if name in topics)
        wanted[member.member_id] = Subscription(
            existing, generation_id=_CURRENT_GENERATION, group_instance_id=member.instance_id
        )
        states[member.member_id] = MemberState(
            [
                TopicPartition(names[topic_id], index)
                for topic_id, indexes in targets.get(member.member_id, {}).items()
                if names.get(topic_id) in existing
                for index in sorted(indexes)
            ],
            _CURRENT_GENERATION,
        )
    if not any(subscription.topics for subscription in wanted.values()):
        return {member_id: {} for member_id in wanted}
    subscribed = {name for subscription in wanted.values() for name in subscription.topics}
    counts = {name: topics[name].partition_count for name in subscribed}
    shares = ASSIGNORS[assignor](counts, wanted, states)
    return {member_id: _by_topic_id(shares.get(member_id, ()), topics) for member_id in wanted}


def _by_topic_id(partitions: Iterable[TopicPartition], topics: Topics) -> Assignment:
    found: dict[bytes, set[int]] = {}
    for topic, index in partitions:
        found.setdefault(topics[topic].topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
