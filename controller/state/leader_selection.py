"""Leader election of a partition: pure functions of assignment, ISR and live replicas.

Mirrors Kafka's `PartitionLeaderElectionAlgorithms` and `Election`. `elect_leader` applies a
strategy and returns the next state of the partition and the replicas to send it to; the state
machines write and send it.
"""

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from ottla.controller.model import RECOVERING, LeaderAndIsr, ReplicaAssignment


class ElectionStrategy(Enum):
    """When a leader is elected; the values are the names of Kafka's strategies."""

    OFFLINE = "OfflinePartitionLeaderElectionStrategy(allowUnclean=false)"
    """The partition has no live leader; unclean only if the topic's configuration allows it."""
    UNCLEAN = "OfflinePartitionLeaderElectionStrategy(allowUnclean=true)"
    """As OFFLINE, unclean because an administrator requested it (ElectLeaders)."""
    REASSIGN = "ReassignPartitionLeaderElectionStrategy"
    """The leader is not one of the target replicas of a reassignment."""
    PREFERRED = "PreferredReplicaPartitionLeaderElectionStrategy"
    """Only the first replica of the assignment may be elected."""
    CONTROLLED_SHUTDOWN = "ControlledShutdownPartitionLeaderElectionStrategy"
    """The leader's broker is shutting down."""


def offline_leader(
    assignment: Sequence[int], isr: Collection[int], live: Collection[int], *, unclean: bool
) -> int | None:
    """The first live replica in the ISR; else, if `unclean`, the first live one (data loss)."""
    for replica in assignment:
        if replica in live and replica in isr:
            return replica
    if unclean:
        for replica in assignment:
            if replica in live:
                return replica
    return None


def surviving_isr(
    assignment: Sequence[int],
    current: LeaderAndIsr,
    live: Collection[int],
    unclean: Collection[int],
) -> tuple[int, ...]:
    """The live replicas of an ISR that are still known to have every acknowledged record.

    `unclean` have restarted after an unclean shutdown since they joined the ISR, and may have
    lost records. If no other replica is live, one of them remains: the last leader, which had the
    longest log, otherwise the first of the assignment. Not in Kafka's ZooKeeper mode; KIP-966 does
    the same in KRaft mode, where the remaining one is the last known leader.
    """
    in_sync = tuple(each for each in current.isr if each in live)
    clean = tuple(each for each in in_sync if each not in unclean)
    if clean or not in_sync:
        return clean
    if current.leader in in_sync:
        return (current.leader,)
    return next((each,) for each in assignment if each in in_sync)


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
    """The state of a partition for an election."""

    current: LeaderAndIsr
    assignment: ReplicaAssignment
    live: tuple[int, ...]  # replicas that are online
    live_or_shutting_down: tuple[int, ...]
    shutting_down: frozenset[int] = frozenset()
    unclean_allowed: bool = False
    recovery_supported: bool = True
    unclean_members: frozenset[int] = frozenset()  # of the ISR, see surviving_isr


class ElectionResult(NamedTuple):
    """`state` is None if no replica can be elected; `recipients` get the LeaderAndIsr."""

    state: LeaderAndIsr | None
    recipients: tuple[int, ...]


def elect_leader(strategy: ElectionStrategy, inputs: ElectionInput) -> ElectionResult:
    """Apply a strategy; the new state has the next leader epoch."""
    if strategy in (ElectionStrategy.OFFLINE, ElectionStrategy.UNCLEAN):
        return _elect_offline_leader(inputs)
    current, replicas = inputs.current, inputs.assignment.replicas
    if strategy is ElectionStrategy.REASSIGN:
        targets = inputs.assignment.target_replicas
        leader = reassign_leader(targets, current.isr, inputs.live)
        return _elected(current, leader, current.isr, targets)
    if strategy is ElectionStrategy.PREFERRED:
        leader = preferred_leader(replicas, current.isr, inputs.live)
        return _elected(current, leader, current.isr, replicas)
    leader = controlled_shutdown_leader(
        replicas, current.isr, inputs.live_or_shutting_down, inputs.shutting_down
    )
    isr = tuple(each for each in current.isr if each not in inputs.shutting_down)
    return _elected(current, leader, isr, inputs.live_or_shutting_down)


def _elect_offline_leader(inputs: ElectionInput) -> ElectionResult:
    current, replicas = inputs.current, inputs.assignment.replicas
    isr = surviving_isr(replicas, current, inputs.live, inputs.unclean_members)
    if inputs.unclean_members and current.leader in isr:
        leader: int | None = current.leader
    else:
        leader = offline_leader(replicas, isr, inputs.live, unclean=inputs.unclean_allowed)
    if leader is None:
        return ElectionResult(None, inputs.live)
    if leader in isr:
        return _elected(current, leader, isr, inputs.live)
    state = current.with_leader_and_isr(leader, (leader,))
    if inputs.recovery_supported:
        state = state._replace(recovery_state=RECOVERING)
    return ElectionResult(state, inputs.live)


def _elected(
    current: LeaderAndIsr, leader: int | None, isr: tuple[int, ...], recipients: tuple[int, ...]
) -> ElectionResult:
    state = None if leader is None else current.with_leader_and_isr(leader, isr)
    return ElectionResult(state, recipients)
