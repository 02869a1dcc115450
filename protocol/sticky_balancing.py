"""The general case of the sticky assignors: members that want different topics.

Free partitions go to the member with the least that wants them; then single partitions are moved
from members with more to members with less until no move helps. Moves that would send partitions
of one topic to and fro between two members are replaced by moving back what went the other way.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from ottla.protocol.consumer_protocol import Subscription
from ottla.protocol.java_order import first_of_hash_set
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

Assignments = dict[str, list[TopicPartition]]

PARTITIONS_PER_STEP = 128

_NONE: frozenset[TopicPartition] = frozenset()


def all_partitions(
    topics: Iterable[str], counts: Mapping[str, int], without: AbstractSet[TopicPartition] = _NONE
) -> Steps[list[TopicPartition]]:
    """The partitions of the topics in their order, except some."""
    found: list[TopicPartition] = []
    seen = 0
    for topic in topics:
        for number in range(counts[topic]):
            partition = TopicPartition(topic, number)
            if partition not in without:
                found.append(partition)
            seen += 1
            if not seen % PARTITIONS_PER_STEP:
                yield
    return found


class _Movements:
    """Where partitions went, to see that none of a topic goes both ways between two members."""

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
        """A partition that went from ``target`` to ``source`` before, or else this one."""
        if partition in self._of:
            source = self._of[partition][0]
        back = self._by_topic.get(partition.topic, {}).get((target, source))
        return first_of_hash_set(back) if back else partition


class Balancing:
    """One run of the algorithm; ``owned`` is changed and becomes the result."""

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
        self.all_partitions: list[TopicPartition] = []
        self.movements = _Movements()
        self.by_load: list[tuple[int, str]] = []
        self.must_revoke = False

    def run(self, members: list[str]) -> Steps[Assignments]:
        """The assignments; steps have about 0.1 ms, except for members with very much."""
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
        self.all_partitions = yield from all_partitions(topics, self.counts)
        yield from self._drop_what_is_not_wanted_any_more()
        assigned: set[TopicPartition] = set()
        for found in self.assignments.values():
            assigned.update(found)
            yield
        free = yield from all_partitions(topics, self.counts, assigned)
        self.by_load = sorted((len(found), member) for member, found in self.assignments.items())
        yield from self._balance(free)
        return self.assignments

    def _drop_what_is_not_wanted_any_more(self) -> Steps[None]:
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
        movable = [partition for partition in self.all_partitions if partition.topic in contested]
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
        """Members that have all they can get, none of it wanted by others."""
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
        """Whether no member could take a partition from a member with two more."""
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
