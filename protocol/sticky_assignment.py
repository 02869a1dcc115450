"""The algorithm of both sticky assignors: even first, then as little movement as possible.

When all members want the same topics, shares can be computed and owned partitions kept up to them
(``_assign_evenly``). Otherwise partitions are moved one at a time until no move makes it more even
(``ottla.protocol.sticky_balancing``).

Where Java's classes walk over a HashMap the order shows in the result, so this module walks in the
same order: a group may be led by a Java client today and by us tomorrow without everything moving.
"""

from collections import deque
from collections.abc import Mapping

from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.java_order import hash_map_order_in_steps
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.sticky_balancing import PARTITIONS_PER_STEP, Balancing, all_partitions
from ottla.protocol.sticky_state import NO_GENERATION, MemberState
from ottla.protocol.topics import TopicPartition

Assignments = dict[str, list[TopicPartition]]
Moving = dict[TopicPartition, str]

_MEMBERS_PER_STEP = 16


def assign_sticky(
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Subscription],
    states: Mapping[str, MemberState],
) -> tuple[Assignments, Moving | None]:
    """(assignments, partitions that change hands with their new owners).

    The second is None where it was not worked out along the way. ``counts`` has the existing topics
    that a member subscribes to.
    """
    return run_at_once(assign_sticky_in_steps(counts, subscriptions, states))


def assign_sticky_in_steps(
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Subscription],
    states: Mapping[str, MemberState],
) -> Steps[tuple[Assignments, Moving | None]]:
    """As `assign_sticky`."""
    if not subscriptions:
        return {}, {}
    members = yield from hash_map_order_in_steps(subscriptions)
    owned, claimed_twice = yield from _owned_partitions(members, counts, subscriptions, states)
    if (yield from _all_want_the_same(members, subscriptions)):
        return (yield from _assign_evenly(counts, owned, claimed_twice))
    latest = max(_generation(states[member]) for member in members)
    earlier = yield from _earlier_owners(members, states, latest)
    balancing = Balancing(counts, subscriptions, owned, earlier)
    return (yield from balancing.run(members)), None


def _generation(state: MemberState) -> int:
    return NO_GENERATION if state.generation is None else state.generation


def _all_want_the_same(
    members: list[str], subscriptions: Mapping[str, Subscription]
) -> Steps[bool]:
    """Java's class forgets members without any topics here, and then assigns partitions to them."""
    wanted = set(subscriptions[members[0]].topics)
    for number, member in enumerate(members, 1):
        if wanted != set(subscriptions[member].topics):
            return False
        if not number % _MEMBERS_PER_STEP:
            yield
    return True


def _owned_partitions(
    members: list[str],
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Subscription],
    states: Mapping[str, MemberState],
) -> Steps[tuple[Assignments, set[TopicPartition]]]:
    """(what each member may keep, partitions that two of one generation claim).

    Of two members that claim a partition, the one of the later generation has it.
    """
    owned: Assignments = {}
    owner_of: dict[TopicPartition, str] = {}
    claimed_twice: set[TopicPartition] = set()
    for member in members:
        generation = _generation(states[member])
        mine = owned[member] = []
        for partition in states[member].partitions:
            if not partition.partition < counts.get(partition.topic, 0):
                continue  # gone since
            other = owner_of.get(partition)
            if other is None:
                mine.append(partition)
                owner_of[partition] = member
                continue
            other_generation = max(subscriptions[other].generation_id, NO_GENERATION)
            if generation < other_generation:
                continue
            if partition in owned[other]:
                owned[other].remove(partition)
            owner_of[partition] = member
            if generation == other_generation:
                claimed_twice.add(partition)
            else:
                mine.append(partition)
        yield
    return owned, claimed_twice


def _earlier_owners(
    members: list[str], states: Mapping[str, MemberState], latest: int
) -> Steps[dict[TopicPartition, str]]:
    """Who had each partition in the latest of the generations that are over."""
    owners: dict[TopicPartition, tuple[str, int]] = {}
    for member in members:
        generation = states[member].generation
        if generation is None:
            if latest <= NO_GENERATION:
                continue
            generation = NO_GENERATION
        elif generation >= latest:
            continue
        for partition in states[member].partitions:
            known = owners.get(partition)
            if known is None or generation > known[1]:
                owners[partition] = (member, generation)
        yield
    return {partition: member for partition, (member, _) in owners.items()}


class _Shares:
    """Counts of who still needs partitions while they are assigned evenly."""

    def __init__(self, total: int, members: int) -> None:
        self.least, self.larger_wanted = divmod(total, members)
        self.most = self.least + (1 if self.larger_wanted else 0)
        self.larger = 0  # members that have ``most`` already, where that is more than ``least``
        self.below: list[str] = []  # have less than ``least``
        self.may_get_one_more: deque[str] = deque()  # have exactly ``least``


def _assign_evenly(
    counts: Mapping[str, int], owned: Assignments, claimed_twice: set[TopicPartition]
) -> Steps[tuple[Assignments, Moving]]:
    shares = _Shares(sum(counts.values()), len(owned))
    assignments: Assignments = {member: [] for member in owned}
    given_up: dict[TopicPartition, str] = {}
    kept: set[TopicPartition] = set()
    for member, partitions in owned.items():
        keep = sorted(
            (partition for partition in partitions if partition not in claimed_twice),
            key=lambda partition: (partition.partition, partition.topic),
        )
        limit = _keep_limit(member, len(keep), shares)
        assignments[member] = keep[:limit]
        given_up.update(dict.fromkeys(keep[limit:], member))
        kept.update(keep[:limit])
        yield
    free = yield from all_partitions(sorted(counts), counts, kept)
    moving: Moving = {}
    dealt = yield from _deal(free, assignments, shares)
    for number, (partition, member) in enumerate(dealt, 1):
        if given_up.get(partition, member) != member or partition in claimed_twice:
            moving[partition] = member
        if not number % PARTITIONS_PER_STEP:
            yield
    return assignments, moving


def _keep_limit(member: str, owned: int, shares: _Shares) -> int:
    """How many of its partitions a member keeps; notes whether it can get more."""
    if owned < shares.least:
        shares.below.append(member)
        return owned
    if owned >= shares.most and shares.larger < shares.larger_wanted:
        shares.larger += 1
        if shares.larger == shares.larger_wanted:
            shares.may_get_one_more.clear()
        return shares.most
    if shares.larger < shares.larger_wanted:
        shares.may_get_one_more.append(member)
    return shares.least


def _deal(
    free: list[TopicPartition], assignments: Assignments, shares: _Shares
) -> Steps[list[tuple[TopicPartition, str]]]:
    """Give the free partitions in turn to those who need most."""
    shares.below.sort()
    may_get_one_more = deque(sorted(shares.may_get_one_more))
    dealt: list[tuple[TopicPartition, str]] = []
    turn = 0
    for number, partition in enumerate(free, 1):
        if not number % PARTITIONS_PER_STEP:
            yield
        if turn >= len(shares.below):
            turn = 0
        if shares.below:
            member = shares.below[turn]
        else:
            member = may_get_one_more.popleft()
        assignments[member].append(partition)
        dealt.append((partition, member))
        if not shares.below:
            continue
        if len(assignments[member]) == shares.least:
            del shares.below[turn]
            may_get_one_more.append(member)
        else:
            turn += 1
    return dealt
