"""Moves partitions to members in the racks of their replicas, without changing the balance.

Members of a topic swap partitions of it when more of them are then read from a replica in the rack
of their member (KIP-392, KIP-881). Members keep their numbers of partitions. An assignment that was
improved is not changed again, so partitions move once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ottla.broker.groups.consumer.cluster_topics import TopicDescription
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

Shares = dict[str, list[TopicPartition]]
Racks = frozenset[str]


class _Topic:
    """The partitions of one topic by their racks and the rack of their member.

    There are as many kinds as racks and sets of racks, which are few.
    """

    def __init__(
        self,
        topic: TopicDescription,
        owners: dict[int, str],
        racks: Mapping[str, str | None],
    ) -> None:
        self._topic = topic
        self.owners = owners
        self._racks = racks
        self._kinds: dict[tuple[str | None, Racks], dict[int, None]] = {}
        for index in owners:
            self._kinds.setdefault(self._kind(index), {})[index] = None

    def racks_of(self, index: int) -> Racks:
        return self._topic.racks.get(index, frozenset())

    def _kind(self, index: int) -> tuple[str | None, Racks]:
        return self._racks[self.owners[index]], self.racks_of(index)

    def is_far(self, index: int) -> bool:
        """Return whether the partition has known racks, and none is that of its member."""
        return not _is_near(*self._kind(index))

    def swap(self, index: int) -> bool:
        """Swap a partition that is far from its member with the best other one, if one is."""
        rack, racks = self._kind(index)
        best, gain = None, 0
        for (other_rack, other_racks), indexes in self._kinds.items():
            if other_rack == rack or not indexes or not _is_near(rack, other_racks):
                continue
            won = 1 + _is_near(other_rack, racks) - _is_near(other_rack, other_racks)
            if won > gain:
                best, gain = next(iter(indexes)), won
        if best is None:
            return False
        for each in (index, best):
            del self._kinds[self._kind(each)][each]
        self.owners[index], self.owners[best] = self.owners[best], self.owners[index]
        for each in (index, best):
            self._kinds.setdefault(self._kind(each), {})[each] = None
        return True


def _is_near(rack: str | None, racks: Racks) -> bool:
    """A member without a rack reads from any replica, as do all where no rack is known."""
    return rack is None or not racks or rack in racks


def prefer_racks(
    shares: Shares, topics: Mapping[str, TopicDescription], racks: Mapping[str, str | None]
) -> Steps[Shares]:
    """Return the assignment with fewer partitions far from their members.

    `racks` has the rack of each member, None for one without.
    """
    if len(set(racks.values())) < 2:
        return shares
    owners: dict[str, dict[int, str]] = {}
    for member_id, partitions in shares.items():
        for topic, index in partitions:
            owners.setdefault(topic, {})[index] = member_id
        yield
    for name, of_topic in owners.items():
        if not topics[name].racks:
            continue
        found = _Topic(topics[name], dict(sorted(of_topic.items())), racks)
        far = deque(index for index in found.owners if found.is_far(index))
        while far:  # each swap brings one more partition near, so it ends
            index = far.popleft()
            if found.is_far(index) and found.swap(index) and found.is_far(index):
                far.append(index)
            yield
        owners[name] = found.owners
    improved: Shares = {member_id: [] for member_id in shares}
    for name, of_topic in owners.items():
        for index, member_id in of_topic.items():
            improved[member_id].append(TopicPartition(name, index))
        yield
    return improved
