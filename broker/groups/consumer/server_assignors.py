"""The server-side assignors (KIP-848): `uniform` and `range`.

`uniform` is the sticky assignor: it balances the partitions and moves as few as possible. `range`
assigns each member a range of consecutive partitions of each topic, and co-partitions topics with
equal numbers of partitions. `uniform` prefers members in the racks of the replicas, which Kafka's
assignors of the same names do not; `range` ignores racks, since topics are co-partitioned.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.broker.groups.consumer.cluster_topics import TopicDescription
from ottla.broker.groups.consumer.member import Assignment, ConsumerMember
from ottla.broker.groups.consumer.rack_swaps import prefer_racks
from ottla.protocol.assignors import assign_range
from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.steps import Steps
from ottla.protocol.sticky_assignment import MemberState, assign_sticky
from ottla.protocol.topics import TopicPartition

UNIFORM = "uniform"
RANGE = "range"

Topics = Mapping[str, TopicDescription]
Names = dict[str, list[TopicPartition]]
_Assign = Callable[[dict[str, int], dict[str, Subscription], dict[str, MemberState]], Steps[Names]]

_CURRENT_GENERATION = 1  # all targets have the same generation


def _uniform(
    counts: dict[str, int], wanted: dict[str, Subscription], states: dict[str, MemberState]
) -> Steps[Names]:
    return (yield from assign_sticky(counts, wanted, states))[0]


def _range(
    counts: dict[str, int], wanted: dict[str, Subscription], states: dict[str, MemberState]
) -> Steps[Names]:
    return assign_range(counts, wanted)


ASSIGNORS: dict[str, _Assign] = {UNIFORM: _uniform, RANGE: _range}
"""By name; the first is the default."""


def assign(
    assignor: str,
    members: Collection[ConsumerMember],
    topics: Topics,
    topics_of: Callable[[ConsumerMember], frozenset[str]],
    targets: Mapping[str, Assignment],
) -> Steps[dict[str, Assignment]]:
    """Return the new target assignment of every member.

    `topics_of` returns the subscribed topics of a member; `targets` has the previous targets.
    """
    names = {topic.topic_id: name for name, topic in topics.items()}
    wanted: dict[str, Subscription] = {}
    states: dict[str, MemberState] = {}
    subscribed: set[str] = set()
    for member in members:
        existing = topics_of(member) & topics.keys()
        subscribed |= existing
        wanted[member.member_id] = Subscription(
            sorted(existing),
            generation_id=_CURRENT_GENERATION,
            group_instance_id=member.instance_id,
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
        yield
    if not subscribed:
        return {member_id: {} for member_id in wanted}
    counts = {name: topics[name].partition_count for name in sorted(subscribed)}
    shares = yield from ASSIGNORS[assignor](counts, wanted, states)
    if assignor == UNIFORM:
        racks = {member.member_id: member.rack_id for member in members}
        shares = yield from prefer_racks(shares, topics, racks)
    found: dict[str, Assignment] = {}
    for member_id in wanted:
        found[member_id] = _by_topic_id(shares.get(member_id, ()), topics)
        yield
    return found


def _by_topic_id(partitions: Iterable[TopicPartition], topics: Topics) -> Assignment:
    found: dict[bytes, set[int]] = {}
    for topic, index in partitions:
        found.setdefault(topics[topic].topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
