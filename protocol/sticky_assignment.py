"""Both sticky assignors: even first, then as little movement as possible.

When all members want the same topics, shares are computed and owned partitions kept up to them
(`_assign_evenly`). Otherwise (`_Balancing`) each free partition goes to the member with the least
that wants it. Then single partitions move from members with more to members with less until no move
helps. A move that would send partitions of one topic to and fro between two members is replaced by
moving back the one that went the other way.

The user data of a member holds its partitions. The eager assignor writes `[topic, [partition]],
generation`; the cooperative one only the generation, because a subscription lists the owned
partitions.

Where Java's classes iterate over a HashMap its order shows in the result, so this module uses the
same order: a group may have a Java leader today and an Ottla leader tomorrow without moving all
partitions.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from struct import Struct, error
from typing import NamedTuple

from ottla.protocol.consumer_protocol import Subscription, group_by_topic
from ottla.protocol.java_order import first_of_hash_set, hash_map_order
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

Assignments = dict[str, list[TopicPartition]]
Moving = dict[TopicPartition, str]

NO_GENERATION = -1

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class MemberState(NamedTuple):
    """The partitions of a member; `generation` is None if the member did not send one."""

    partitions: Sequence[TopicPartition]
    generation: int | None


def encode_sticky_state(partitions: list[TopicPartition], generation: int) -> bytes:
    """Return the user data of a member of an eager sticky group."""
    grouped = group_by_topic(partitions)
    parts = [_INT32.pack(len(grouped))]
    for topic, numbers in grouped.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(numbers)))
        parts += (_INT32.pack(number) for number in numbers)
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def encode_cooperative_state(generation: int) -> bytes:
    """Return the user data of a member of a cooperative sticky group."""
    return _INT32.pack(generation)


def read_sticky_state(subscription: Subscription) -> MemberState:
    """Decode the user data; a member whose data is malformed owns nothing."""
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
    """Return the state in the subscription, or in the user data for versions before 2."""
    owned = subscription.owned_partitions
    if subscription.generation_id >= 0:
        return MemberState(owned, subscription.generation_id)
    data = subscription.user_data
    if data is None:
        return MemberState(owned, None)
    if len(data) < _INT32.size:
        return MemberState(owned, NO_GENERATION)
    return MemberState(owned, _INT32.unpack_from(data, 0)[0])


_NONE: frozenset[TopicPartition] = frozenset()


def _all_partitions(
    topics: Iterable[str], counts: Mapping[str, int], without: AbstractSet[TopicPartition] = _NONE
) -> Steps[list[TopicPartition]]:
    """Return the partitions of the topics in order, except those in `without`."""
    found: list[TopicPartition] = []
    for topic in topics:
        for number in range(counts[topic]):
            partition = TopicPartition(topic, number)
            if partition not in without:
                found.append(partition)
            yield
    return found


class _Movements:
    """The moves so far, so that no topic moves both ways between two members."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[tuple[str, str], dict[TopicPartition, None]]] = {}
        self._of: dict[TopicPartition, tuple[str, str]] = {}

    def add(self, partition: TopicPartition, source: str, target: str) -> None:
        known = self._of.pop(partition, None)
        if known is not None:
            pairs = self._by_topic[partition.topic]
            del pairs[known][partition]
            if not pairs[known]:
                del pairs[known]
            source = known[0]
            if source == target:
                return  # back where it came from
        self._of[partition] = (source, target)
        pairs = self._by_topic.setdefault(partition.topic, {})
        pairs.setdefault((source, target), {})[partition] = None

    def to_move_instead(
        self, partition: TopicPartition, source: str, target: str
    ) -> TopicPartition:
        """Return a partition that moved from `target` to `source` before, or else this one."""
        if partition in self._of:
            source = self._of[partition][0]
        back = self._by_topic.get(partition.topic, {}).get((target, source))
        return first_of_hash_set(back) if back else partition


class _Balancing:
    """One run of the algorithm; `owned` is changed and becomes the result."""

    def __init__(
        self,
        counts: Mapping[str, int],
        subscriptions: Mapping[str, Subscription],
        owned: Assignments,
        earlier_owners: Mapping[TopicPartition, str],
    ) -> None:
        self.counts = counts
        self.assignments = owned
        self.earlier_owners = earlier_owners
        self.subscriptions = subscriptions
        self.topics_of: dict[str, list[str]] = {}
        self.wants: dict[str, frozenset[str]] = {}  # the same as a set
        self.members_of: dict[str, list[str]] = {topic: [] for topic in counts}
        self.owner_of: dict[TopicPartition, str] = {}
        self._all_partitions: list[TopicPartition] = []
        self.movements = _Movements()
        self.by_load: list[tuple[int, str]] = []
        self.must_revoke = False

    def run(self, members: list[str]) -> Steps[Assignments]:
        """Return the assignments. A member with thousands of partitions makes a step longer."""
        for member in members:
            topics = [topic for topic in self.subscriptions[member].topics if topic in self.counts]
            self.topics_of[member] = topics
            self.wants[member] = frozenset(topics)
            for topic in topics:
                self.members_of[topic].append(member)
            yield
        for member, found in self.assignments.items():
            self.owner_of.update(dict.fromkeys(found, member))
            yield
        topics = sorted(self.counts, key=lambda topic: (len(self.members_of[topic]), topic))
        self._all_partitions = yield from _all_partitions(topics, self.counts)
        yield from self._drop_unwanted()
        assigned: set[TopicPartition] = set()
        for found in self.assignments.values():
            assigned.update(found)
            yield
        free = yield from _all_partitions(topics, self.counts, assigned)
        self.by_load = sorted((len(found), member) for member, found in self.assignments.items())
        yield from self._balance(free)
        return self.assignments

    def _drop_unwanted(self) -> Steps[None]:
        for member, found in self.assignments.items():
            wanted = [partition for partition in found if partition.topic in self.wants[member]]
            if len(wanted) != len(found):
                self.must_revoke = True
                self.assignments[member] = wanted
            yield

    # who has how much ----------------------------------------------------------------------

    def _load(self, member: str) -> int:
        return len(self.assignments[member])

    def _take_out(self, member: str) -> None:
        del self.by_load[bisect_left(self.by_load, (self._load(member), member))]

    def _put_in(self, member: str) -> None:
        insort(self.by_load, (self._load(member), member))

    def _least_loaded_that_wants(self, topic: str) -> str | None:
        return next((member for _, member in self.by_load if topic in self.wants[member]), None)

    # the steps -----------------------------------------------------------------------------

    def _balance(self, free: list[TopicPartition]) -> Steps[None]:
        initializing = self.by_load[-1][0] == 0
        for partition in free:
            yield  # all members may have been checked
            member = self._least_loaded_that_wants(partition.topic)
            if member is not None:
                self._take_out(member)
                self.assignments[member].append(partition)
                self.owner_of[partition] = member
                self._put_in(member)
        contested = {topic for topic, members in self.members_of.items() if len(members) >= 2}
        movable = [partition for partition in self._all_partitions if partition.topic in contested]
        yield
        movable_free = [partition for partition in free if partition.topic in contested]
        yield
        settled = yield from self._set_aside_settled_members(contested)
        before = {member: list(found) for member, found in self.assignments.items()}
        yield
        moved = False
        if not self.must_revoke:
            yield from self._move_until_even(movable_free)
        moved = yield from self._move_until_even(movable)
        if not initializing and moved and _unevenness(self.assignments) >= _unevenness(before):
            self.assignments = before
        self.assignments.update(settled)

    def _set_aside_settled_members(self, contested: set[str]) -> Steps[Assignments]:
        """Return the members that have all they can get, none of it wanted by others."""
        settled: Assignments = {}
        for member, topics in self.topics_of.items():
            yield
            found = self.assignments[member]
            if len(found) < sum(self.counts[topic] for topic in topics):
                continue
            if any(partition.topic in contested for partition in found):
                continue
            self._take_out(member)
            settled[member] = self.assignments.pop(member)
        return settled

    def _move_until_even(self, partitions: list[TopicPartition]) -> Steps[bool]:
        moved_ever = False
        while True:
            moved = False
            for partition in partitions:
                if (yield from self._is_even()):
                    break
                moved |= self._move_if_better(partition)
                yield
            moved_ever |= moved
            if not moved:
                return moved_ever

    def _move_if_better(self, partition: TopicPartition) -> bool:
        load = self._load(self.owner_of[partition])
        earlier = self.earlier_owners.get(partition)
        if earlier in self.assignments and load > self._load(earlier) + 1:
            self._move(partition, earlier)
            return True
        for other in self.members_of[partition.topic]:
            if load > self._load(other) + 1:
                target = self._least_loaded_that_wants(partition.topic)
                assert target is not None
                self._move(partition, target)
                return True
        return False

    def _move(self, wanted: TopicPartition, target: str) -> None:
        partition = self.movements.to_move_instead(wanted, self.owner_of[wanted], target)
        source = self.owner_of[partition]
        self._take_out(source)
        self._take_out(target)
        self.movements.add(partition, source, target)
        self.assignments[source].remove(partition)
        self.assignments[target].append(partition)
        self.owner_of[partition] = target
        self._put_in(target)
        self._put_in(source)

    def _is_even(self) -> Steps[bool]:
        """Return whether no member could take a partition from a member with two more."""
        if not self.by_load or self.by_load[0][0] >= self.by_load[-1][0] - 1:
            return True
        for load, member in self.by_load:
            topics = self.topics_of[member]
            if load == sum(self.counts[topic] for topic in topics):
                continue
            mine = set(self.assignments[member])
            for topic in topics:
                yield
                for number in range(self.counts[topic]):
                    partition = TopicPartition(topic, number)
                    if partition in mine:
                        continue
                    if load + 1 < self._load(self.owner_of[partition]):
                        return False
        return True


def _unevenness(assignments: Assignments) -> int:
    """The sum of the differences between all pairs of members."""
    loads = sorted(len(found) for found in assignments.values())
    count = len(loads)
    return sum(load * (2 * index - count + 1) for index, load in enumerate(loads))


def assign_sticky(
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Subscription],
    states: Mapping[str, MemberState],
) -> Steps[tuple[Assignments, Moving | None]]:
    """Return the assignments, and the partitions that change hands with their new owners.

    The second is None if the algorithm did not work it out on the way. `counts` has the existing
    topics that a member subscribes to. The arguments must not change during a pause.
    """
    if not subscriptions:
        return {}, {}
    members = yield from hash_map_order(subscriptions)
    owned, claimed_twice = yield from _owned_partitions(members, counts, subscriptions, states)
    if (yield from _all_want_the_same(members, subscriptions)):
        return (yield from _assign_evenly(counts, owned, claimed_twice))
    latest = max(_generation(states[member]) for member in members)
    earlier = yield from _earlier_owners(members, states, latest)
    balancing = _Balancing(counts, subscriptions, owned, earlier)
    return (yield from balancing.run(members)), None


def _generation(state: MemberState) -> int:
    return NO_GENERATION if state.generation is None else state.generation


def _all_want_the_same(
    members: list[str], subscriptions: Mapping[str, Subscription]
) -> Steps[bool]:
    """Java's class forgets members without any topics here, and then assigns partitions to them."""
    wanted = set(subscriptions[members[0]].topics)
    for member in members:
        if wanted != set(subscriptions[member].topics):
            return False
        yield
    return True


def _owned_partitions(
    members: list[str],
    counts: Mapping[str, int],
    subscriptions: Mapping[str, Subscription],
    states: Mapping[str, MemberState],
) -> Steps[tuple[Assignments, set[TopicPartition]]]:
    """Return the partitions that each member may keep, and those that two of one generation claim.

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
    """Return the owner of each partition in its latest generation before the current one."""
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
    free = yield from _all_partitions(sorted(counts), counts, kept)
    moving: Moving = {}
    dealt = yield from _deal(free, assignments, shares)
    for partition, member in dealt:
        if given_up.get(partition, member) != member or partition in claimed_twice:
            moving[partition] = member
        yield
    return assignments, moving


def _keep_limit(member: str, owned: int, shares: _Shares) -> int:
    """Return the number of partitions that a member keeps; note whether it can get more."""
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
    """Deal the free partitions in turn to the members that need most."""
    shares.below.sort()
    may_get_one_more = deque(sorted(shares.may_get_one_more))
    dealt: list[tuple[TopicPartition, str]] = []
    turn = 0
    for partition in free:
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
