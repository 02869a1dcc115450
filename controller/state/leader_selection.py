"""Leader election of a partition: pure functions of assignment, ISR and live replicas.

Mirrors Kafka's ``PartitionLeaderElectionAlgorithms`` and ``Election``. ``elect_leader`` applies a
strategy and returns the next state of the partition and the replicas to send it to; the state
machines write and send it.
"""

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from ottla.controller.model import RECOVERING, LeaderAndIsr, ReplicaAssignment


class ElectionStrategy(Enum):
    OFFLINE = "offline"
    """A partition without a live leader; out of the ISR only where the topic allows it."""
    UNCLEAN = "unclean"
    """As OFFLINE, out of the ISR allowed because an administrator asked for it."""
    REASSIGN = "reassign"
    """The leader is not among the replicas a partition is being moved to."""
    PREFERRED = "preferred"
    """The first replica of the assignment or nobody."""
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    """The leader's broker asked to go."""


def offline_leader(
    assignment: Sequence[int], isr: Collection[int], live: Collection[int], *, unclean: bool
) -> int | None:
    """The first live replica in sync; failing that, if allowed, the first live one (data loss)."""
    for replica in assignment:
        if replica in live and replica in isr:
            return replica
    if unclean:
        for replica in assignment:
            if replica in live:
                return replica
    return None


def reassign_leader(
    targets: Sequence[int], isr: Collection[int], live: Collection[int]
) -> int | None:
    for replica in targets:
        if replica in live and replica in isr:
            return replica
    return None


def preferred_leader(
    assignment: Sequence[int], isr: Collection[int], live: Collection[int]
) -> int | None:
    if assignment and assignment[0] in live and assignment[0] in isr:
        return assignment[0]
    return None


def controlled_shutdown_leader(
    assignment: Sequence[int],
    isr: Collection[int],
    live_or_shutting_down: Collection[int],
    shutting_down: Collection[int],
) -> int | None:
    for replica in assignment:
        if replica in live_or_shutting_down and replica in isr and replica not in shutting_down:
            return replica
    return None


class ElectionInput(NamedTuple):
    """Everything a strategy may look at."""

    current: LeaderAndIsr
    assignment: ReplicaAssignment
    live: tuple[int, ...]  # replicas that are online
    live_or_shutting_down: tuple[int, ...]
    shutting_down: frozenset[int] = frozenset()
    unclean_allowed: bool = False
    recovery_supported: bool = True


class ElectionResult(NamedTuple):
    """``state`` is None when nobody can lead; ``recipients`` get the LeaderAndIsr."""

    state: LeaderAndIsr | None
    recipients: tuple[int, ...]


def elect_leader(strategy: ElectionStrategy, situation: ElectionInput) -> ElectionResult:
    """Applies a strategy; the leader epoch of the new state is one above the current."""
    if strategy in (ElectionStrategy.OFFLINE, ElectionStrategy.UNCLEAN):
        return _elect_offline_leader(situation)
    current, replicas = situation.current, situation.assignment.replicas
    if strategy is ElectionStrategy.REASSIGN:
        targets = situation.assignment.target_replicas
        leader = reassign_leader(targets, current.isr, situation.live)
        return _elected(current, leader, current.isr, targets)
    if strategy is ElectionStrategy.PREFERRED:
        leader = preferred_leader(replicas, current.isr, situation.live)
        return _elected(current, leader, current.isr, replicas)
    leader = controlled_shutdown_leader(
        replicas, current.isr, situation.live_or_shutting_down, situation.shutting_down
    )
    isr = tuple(each for each in current.isr if each not in situation.shutting_down)
    return _elected(current, leader, isr, situation.live_or_shutting_down)


def _elect_offline_leader(situation: ElectionInput) -> ElectionResult:
    current = situation.current
    leader = offline_leader(
        situation.assignment.replicas,
        current.isr,
        situation.live,
        unclean=situation.unclean_allowed,
    )
    if leader is None:
        return ElectionResult(None, situation.live)
    if leader in current.isr:
        isr = tuple(each for each in current.isr if each in situation.live)
        return _elected(current, leader, isr, situation.live)
    state = current.with_leader_and_isr(leader, (leader,))
    if situation.recovery_supported:
        state = state._replace(recovery_state=RECOVERING)
    return ElectionResult(state, situation.live)


def _elected(
    current: LeaderAndIsr, leader: int | None, isr: tuple[int, ...], recipients: tuple[int, ...]
) -> ElectionResult:
    state = None if leader is None else current.with_leader_and_isr(leader, isr)
    return ElectionResult(state, recipients)
