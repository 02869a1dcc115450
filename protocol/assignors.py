"""Kafka's four assignors of classic consumer groups.

Each takes the partition counts of the topics that exist and the subscriptions by member id, and
returns the partitions of each member. The results are those of the Java classes of the same names
(3.9), except that racks are not considered (KIP-881).
"""

from collections.abc import Callable, Mapping

from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.steps import Steps
from ottla.protocol.sticky_assignment import (
    MemberState,
    assign_sticky,
    read_cooperative_state,
    read_sticky_state,
)
from ottla.protocol.topics import TopicPartition

PartitionCounts = Mapping[str, int]
Subscriptions = Mapping[str, Subscription]
Assignments = dict[str, list[TopicPartition]]
Assignor = Callable[[PartitionCounts, Subscriptions], Steps[Assignments]]


def _member_order(member_id: str, subscription: Subscription) -> tuple[int, str]:
    """Sort members with an instance id first, by that id; so restarts change nothing."""
    if subscription.group_instance_id is not None:
        return (0, subscription.group_instance_id)
    return (1, member_id)


def _sorted_members(subscriptions: Subscriptions) -> list[str]:
    return sorted(subscriptions, key=lambda member: _member_order(member, subscriptions[member]))


def assign_range(counts: PartitionCounts, subscriptions: Subscriptions) -> Steps[Assignments]:
    """Assign each member a range of neighbouring partitions of each topic; co-partitions topics."""
    assignments: Assignments = {member: [] for member in subscriptions}
    members = _sorted_members(subscriptions)
    subscribed_to: dict[str, list[str]] = {}
    for member in members:
        for topic in subscriptions[member].topics:
            subscribed_to.setdefault(topic, []).append(member)
        yield
    for topic in sorted(counts):
        subscribed = list(dict.fromkeys(subscribed_to.get(topic, ())))
        if not subscribed:
            continue
        share, extra = divmod(counts[topic], len(subscribed))
        start = 0
        for index, member in enumerate(subscribed):
            end = start + share + (1 if index < extra else 0)
            assignments[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
            yield
    return assignments


def assign_round_robin(counts: PartitionCounts, subscriptions: Subscriptions) -> Steps[Assignments]:
    """Assign the partitions of all topics in turn, skipping members not subscribed to the topic."""
    assignments: Assignments = {member: [] for member in subscriptions}
    members = _sorted_members(subscriptions)
    wanted = {topic for subscription in subscriptions.values() for topic in subscription.topics}
    turn = 0
    for topic in sorted(wanted & counts.keys()):
        for number in range(counts[topic]):
            while topic not in subscriptions[members[turn % len(members)]].topics:
                turn += 1
            assignments[members[turn % len(members)]].append(TopicPartition(topic, number))
            turn += 1
            yield
    return assignments


def _existing(counts: PartitionCounts, subscriptions: Subscriptions) -> dict[str, int]:
    """Return the topics that a member subscribes to and that have partitions."""
    wanted = {topic for subscription in subscriptions.values() for topic in subscription.topics}
    return {topic: count for topic, count in counts.items() if topic in wanted and count > 0}


def assign_sticky_eager(
    counts: PartitionCounts, subscriptions: Subscriptions
) -> Steps[Assignments]:
    """Assign as evenly as possible; members keep the partitions in their user data if they can."""
    states = {member: read_sticky_state(found) for member, found in subscriptions.items()}
    return (yield from assign_sticky(_existing(counts, subscriptions), subscriptions, states))[0]


def assign_cooperative_sticky(
    counts: PartitionCounts, subscriptions: Subscriptions
) -> Steps[Assignments]:
    """Assign as `assign_sticky_eager`, without the partitions that change hands.

    The owner gives them up first; the rebalance that follows assigns them.
    """
    states: dict[str, MemberState] = {
        member: read_cooperative_state(found) for member, found in subscriptions.items()
    }
    existing = _existing(counts, subscriptions)
    assignments, moving = yield from assign_sticky(existing, subscriptions, states)
    if moving is None:
        moving = _changing_hands(subscriptions, assignments)
    for partition, member in moving.items():
        assignments[member].remove(partition)
    return assignments


def _changing_hands(
    subscriptions: Subscriptions, assignments: Assignments
) -> dict[TopicPartition, str]:
    added: dict[TopicPartition, str] = {}
    revoked: set[TopicPartition] = set()
    for member, assigned in assignments.items():
        owned = set(subscriptions[member].owned_partitions)
        added.update(dict.fromkeys((found for found in assigned if found not in owned), member))
        revoked |= owned.difference(assigned)
    return {partition: member for partition, member in added.items() if partition in revoked}


ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky_eager,
    "cooperative-sticky": assign_cooperative_sticky,
}
"""By the name that members propose in JoinGroup."""
