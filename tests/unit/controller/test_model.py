"""Assignments on the move, states and brokers as values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.model import BrokerInfo, Endpoint, LeaderAndIsr, ReplicaAssignment

replica_lists = st.lists(st.integers(1, 6), unique=True, min_size=1, max_size=5).map(tuple)


def test_reassignment_in_its_parts() -> None:
    moving = ReplicaAssignment((1, 2, 3)).reassign_to((4, 2))
    assert moving == ReplicaAssignment((4, 2, 1, 3), adding=(4,), removing=(1, 3))
    assert moving.is_being_reassigned
    assert moving.target_replicas == (4, 2)
    assert moving.origin_replicas == (2, 1, 3)


def test_cancelling_goes_back_to_the_origin() -> None:
    moving = ReplicaAssignment((1, 2)).reassign_to((3, 4))
    back = moving.reassign_to(moving.origin_replicas)
    assert back == ReplicaAssignment((1, 2))
    assert not back.is_being_reassigned


@given(replica_lists, replica_lists)
def test_replicas_of_a_replaced_target_are_neither_original_nor_targets(
    origin: tuple[int, ...], target: tuple[int, ...]
) -> None:
    moving = ReplicaAssignment(origin).reassign_to(target)
    kept = moving.with_replaced((8, 9))
    assert kept.replicas == (*moving.replicas, 8, 9)
    assert kept.is_being_reassigned
    assert kept.target_replicas == moving.target_replicas
    assert kept.origin_replicas == moving.origin_replicas
    assert kept.without_replaced() == moving
    assert kept.reassign_to(origin) == moving.reassign_to(origin)


def test_without() -> None:
    moving = ReplicaAssignment((4, 1, 2), adding=(4,), removing=(1,))
    assert moving.without(4) == ReplicaAssignment((1, 2), removing=(1,))
    assert moving.without(1) == ReplicaAssignment((4, 2), adding=(4,))


@given(replica_lists, replica_lists, replica_lists)
def test_targets_and_origin_survive_every_change_of_mind(
    origin: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    moving = ReplicaAssignment(origin).reassign_to(first).reassign_to(second)
    assert moving.target_replicas == second
    assert set(moving.origin_replicas) == set(origin)
    assert set(moving.replicas) == set(origin) | set(second)
    assert set(moving.adding) == set(second) - set(origin)
    assert set(moving.removing) == set(origin) - set(second)


def test_decisions_raise_the_leader_epoch() -> None:
    state = LeaderAndIsr(1, 5, (1, 2), partition_epoch=3)
    assert state.with_next_epoch() == state._replace(leader_epoch=6)
    assert state.with_leader_and_isr(2, (2,)) == state._replace(leader=2, isr=(2,), leader_epoch=6)


def test_endpoint_by_listener() -> None:
    endpoint = Endpoint("B", "SSL", "h", 1)
    broker = BrokerInfo(1, (Endpoint("A", "PLAINTEXT", "h", 2), endpoint))
    assert broker.endpoint("B") is endpoint
    assert broker.endpoint("C") is None
