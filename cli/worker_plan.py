"""Which replicas move so that the workers of a machine have the same share of each topic.

A replica moves from one worker of the machine to another one; replicas on other machines stay. The
result depends on the assignment alone, and an assignment that is even yields no moves, so that a
plan that was carried out in part continues with the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ottla.protocol.topics import TopicPartition

Replicas = Mapping[TopicPartition, Sequence[int]]


class TooManyReplicas(Exception):
    """A partition has more replicas on the machine than workers stay."""

    def __init__(self, partition: TopicPartition, replicas: int, workers: int) -> None:
        super().__init__(
            f"{partition} has {replicas} replicas on this machine, and {workers} worker(s) would "
            "stay: reassign it with fewer replicas first"
        )


def spread(
    current: Replicas, machine: Collection[int], stay: Sequence[int]
) -> dict[TopicPartition, list[int]]:
    """The new replicas of the partitions that change. `machine` are the brokers of the machine,
    `stay` those that have replicas afterwards. Raises TooManyReplicas."""
    plan = _Plan(current, stay)
    leaving = set(machine).difference(stay)
    for partition in plan.partitions:
        plan.leave(partition, leaving)
    for is_leader in (True, False):
        plan.even_out(is_leader)
    return {
        partition: replicas
        for partition, replicas in plan.replicas.items()
        if replicas != list(current[partition])
    }


class _Plan:
    """Leaders are the first replicas: the preferred ones. They are counted apart, because they have
    the load of clients."""

    def __init__(self, current: Replicas, stay: Sequence[int]) -> None:
        self.partitions = sorted(current)
        self.replicas = {partition: list(current[partition]) for partition in self.partitions}
        self._stay = list(stay)
        # By leader or follower: of each worker in all, and of each topic.
        self._all: dict[bool, dict[int, int]] = {each: defaultdict(int) for each in (True, False)}
        self._topic: dict[tuple[bool, str, int], int] = defaultdict(int)
        self._topics: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition, replicas in self.replicas.items():
            self._topics[partition.topic].append(partition)
            for position, broker in enumerate(replicas):
                self._count(partition, position, broker, 1)

    def _count(self, partition: TopicPartition, position: int, broker: int, change: int) -> None:
        self._all[position == 0][broker] += change
        self._topic[position == 0, partition.topic, broker] += change

    def _move(self, partition: TopicPartition, position: int, target: int) -> None:
        replicas = self.replicas[partition]
        self._count(partition, position, replicas[position], -1)
        replicas[position] = target
        self._count(partition, position, target, 1)

    def _load(self, topic: str, is_leader: bool, broker: int) -> tuple[int, int, int]:
        return (self._topic[is_leader, topic, broker], self._all[is_leader][broker], broker)

    def leave(self, partition: TopicPartition, leaving: Collection[int]) -> None:
        """Moves the replicas of workers that will not stay."""
        replicas = self.replicas[partition]
        for position, broker in enumerate(replicas):
            if broker not in leaving:
                continue
            free = [each for each in self._stay if each not in replicas]
            if not free:
                count = sum(each in leaving or each in self._stay for each in replicas)
                raise TooManyReplicas(partition, count, len(self._stay))
            topic = partition.topic
            self._move(
                partition, position, min(free, key=lambda b: self._load(topic, position == 0, b))
            )

    def even_out(self, is_leader: bool) -> None:
        """First each topic, so that a busy one uses all workers, then all topics together."""
        for topic, partitions in self._topics.items():
            while self._improve(partitions, is_leader, topic):
                pass
        while self._improve(self.partitions, is_leader, None):
            pass

    def _improve(
        self, partitions: Sequence[TopicPartition], is_leader: bool, topic: str | None
    ) -> bool:
        """Moves one replica from the worker with most to the one with least; False if none."""

        def load(broker: int) -> int:
            if topic is None:
                return self._all[is_leader][broker]
            return self._topic[is_leader, topic, broker]

        order = sorted(self._stay, key=lambda b: (load(b), self._all[is_leader][b], b))
        for most in reversed(order):
            for least in order:
                if load(most) - load(least) < 2:
                    break
                for partition in partitions:
                    if self._try(partition, is_leader, most, least):
                        return True
        return False

    def _try(self, partition: TopicPartition, is_leader: bool, most: int, least: int) -> bool:
        replicas, topic = self.replicas[partition], partition.topic
        # Never at the cost of the topic's own balance.
        if self._topic[is_leader, topic, most] <= self._topic[is_leader, topic, least]:
            return False
        if is_leader:
            if replicas[0] != most:
                return False
            if least in replicas:  # no data moves: the two change places
                other = replicas.index(least)
                self._move(partition, other, most)
            self._move(partition, 0, least)
            return True
        if most not in replicas[1:] or least in replicas:
            return False
        self._move(partition, replicas.index(most, 1), least)
        return True
