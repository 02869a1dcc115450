"""Who becomes leader, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.model import LeaderAndIsr, ReplicaAssignment
from ottla.controller.state.leader_selection import (
    ElectionInput,
    ElectionStrategy,
    controlled_shutdown_leader,
    elect_leader,
    offline_leader,
    preferred_leader,
    reassign_leader,
    surviving_isr,
)


@pytest.mark.parametrize(
    ("assignment", "isr", "live", "unclean", "leader"),
    [
        ([1, 2, 3], [1, 2, 3], [1, 2, 3], False, 1),
        ([1, 2, 3], [3, 2], [2, 3], False, 2),  # order of the assignment, not of the ISR
        ([1, 2, 3], [1], [2, 3], False, None),
        ([1, 2, 3], [1], [3, 2], True, 2),  # out of the ISR only where allowed
        ([1, 2, 3], [1, 3], [2, 3], True, 3),  # and never while one in sync lives
        ([1, 2], [1], [], True, None),
        ([], [], [], True, None),
    ],
)
def test_offline(
    assignment: list[int], isr: list[int], live: list[int], unclean: bool, leader: int | None
) -> None:
    assert offline_leader(assignment, isr, live, unclean=unclean) == leader


def test_reassign() -> None:
    assert reassign_leader([4, 5], [5, 1], [4, 5]) == 5
    assert reassign_leader([4, 5], [1], [4, 5]) is None
    assert reassign_leader([4, 5], [4], [5]) is None


def test_preferred() -> None:
    assert preferred_leader([2, 1], [1, 2], [1, 2]) == 2
    assert preferred_leader([2, 1], [1], [1, 2]) is None
    assert preferred_leader([2, 1], [1, 2], [1]) is None
    assert preferred_leader([], [], []) is None


def test_controlled_shutdown() -> None:
    assert controlled_shutdown_leader([1, 2, 3], [1, 2, 3], [1, 2, 3], {1}) == 2
    assert controlled_shutdown_leader([1, 2, 3], [1, 3], [1, 2, 3], {1}) == 3
    assert controlled_shutdown_leader([1, 2], [1], [1, 2], {1}) is None
    assert controlled_shutdown_leader([1, 2], [1, 2], [1, 2], {1, 2}) is None


CURRENT = LeaderAndIsr(leader=1, leader_epoch=4, isr=(1, 2, 3), partition_epoch=9)


def inputs(
    *,
    current: LeaderAndIsr = CURRENT,
    assignment: ReplicaAssignment | None = None,
    live: tuple[int, ...],
    shutting_down: frozenset[int] = frozenset(),
    unclean: bool = False,
) -> ElectionInput:
    return ElectionInput(
        current=current,
        assignment=assignment or ReplicaAssignment((1, 2, 3)),
        live=live,
        live_or_shutting_down=tuple(sorted({*live, *shutting_down})),
        shutting_down=shutting_down,
        unclean_allowed=unclean,
    )


def test_offline_election_leaves_the_dead_out_of_the_isr() -> None:
    election = elect_leader(ElectionStrategy.OFFLINE, inputs(live=(2, 3)))
    assert election.state == CURRENT._replace(leader=2, isr=(2, 3), leader_epoch=5)
    assert election.recipients == (2, 3)


def test_unclean_election_starts_over_with_one_recovering_replica() -> None:
    current = CURRENT._replace(isr=(1,))
    election = elect_leader(
        ElectionStrategy.UNCLEAN, inputs(current=current, live=(2, 3), unclean=True)
    )
    assert election.state == current._replace(leader=2, isr=(2,), leader_epoch=5, recovery_state=1)
    old = inputs(current=current, live=(2, 3), unclean=True)._replace(recovery_supported=False)
    state = elect_leader(ElectionStrategy.OFFLINE, old).state
    assert state is not None
    assert state.recovery_state == 0
    assert (
        elect_leader(ElectionStrategy.OFFLINE, inputs(current=current, live=(2, 3))).state is None
    )


def test_reassignment_takes_a_target_and_returns_all_targets() -> None:
    assignment = ReplicaAssignment((4, 2, 1, 3), adding=(4,), removing=(1, 3))
    current = CURRENT._replace(isr=(1, 2, 3, 4))
    election = elect_leader(
        ElectionStrategy.REASSIGN, inputs(current=current, assignment=assignment, live=(1, 2, 3))
    )
    assert election.state == current._replace(leader=2, leader_epoch=5)
    assert election.recipients == (4, 2)


def test_preferred_election_keeps_the_isr() -> None:
    current = CURRENT._replace(leader=2)
    election = elect_leader(ElectionStrategy.PREFERRED, inputs(current=current, live=(1, 2, 3)))
    assert election.state == current._replace(leader=1, leader_epoch=5)
    assert (
        elect_leader(ElectionStrategy.PREFERRED, inputs(current=current, live=(2, 3))).state is None
    )


def test_controlled_shutdown_takes_the_leaving_out_of_the_isr() -> None:
    leaving = inputs(live=(2, 3), shutting_down=frozenset({1}))
    election = elect_leader(ElectionStrategy.CONTROLLED_SHUTDOWN, leaving)
    assert election.state == CURRENT._replace(leader=2, isr=(2, 3), leader_epoch=5)
    assert election.recipients == (1, 2, 3)


@pytest.mark.parametrize(
    ("leader", "isr", "live", "unclean", "surviving"),
    [
        (1, (1, 2, 3), (1, 2, 3), (), (1, 2, 3)),
        (1, (1, 2, 3), (1, 2, 3), (1,), (2, 3)),
        (2, (3, 2, 1), (1, 2, 3), (3,), (2, 1)),  # in the order of the ISR
        (1, (1, 2, 3), (1, 3), (1,), (3,)),
        (1, (1, 2, 3), (1,), (1,), (1,)),  # the only one there is
        (3, (1, 2, 3), (1, 2, 3), (1, 2, 3), (3,)),  # all unclean: the last leader alone
        (3, (3, 2, 1), (1, 2), (1, 2), (1,)),  # it is not live: the first of the assignment
        (-1, (1,), (2, 3), (1,), ()),
        (1, (1, 2), (2,), (1,), (2,)),
    ],
)
def test_isr_after_unclean_restarts(
    leader: int,
    isr: tuple[int, ...],
    live: tuple[int, ...],
    unclean: tuple[int, ...],
    surviving: tuple[int, ...],
) -> None:
    current = CURRENT._replace(leader=leader, isr=isr)
    assert surviving_isr((1, 2, 3), current, live, unclean) == surviving


@pytest.mark.parametrize(
    ("leader", "live", "unclean", "elected", "isr"),
    [
        (1, (1, 2, 3), (1,), 2, (2, 3)),  # a leader that lost records follows
        (2, (1, 2, 3), (1,), 2, (2, 3)),  # a leader that survived stays one
        (2, (1, 3), (1,), 3, (3,)),
        (1, (1, 2, 3), (1, 2, 3), 1, (1,)),
        (3, (1, 2), (1, 2), 1, (1,)),
    ],
)
def test_election_after_unclean_restarts(
    leader: int,
    live: tuple[int, ...],
    unclean: tuple[int, ...],
    elected: int,
    isr: tuple[int, ...],
) -> None:
    current = CURRENT._replace(leader=leader)
    restarted = inputs(current=current, live=live)._replace(unclean_members=frozenset(unclean))
    election = elect_leader(ElectionStrategy.OFFLINE, restarted)
    assert election.state == current._replace(leader=elected, isr=isr, leader_epoch=5)
    assert election.recipients == live


@given(
    st.sampled_from(ElectionStrategy),
    st.lists(st.integers(1, 5), unique=True, min_size=1, max_size=5),
    st.sets(st.integers(1, 5), min_size=1),
    st.sets(st.integers(1, 5)),
    st.booleans(),
)
def test_whatever_is_chosen_is_sound(
    strategy: ElectionStrategy, replicas: list[int], isr: set[int], live: set[int], unclean: bool
) -> None:
    current = LeaderAndIsr(leader=min(isr), leader_epoch=3, isr=tuple(sorted(isr)))
    online = tuple(replica for replica in replicas if replica in live)
    election = elect_leader(
        strategy,
        ElectionInput(
            current, ReplicaAssignment(tuple(replicas)), online, online, frozenset(), unclean
        ),
    )
    state = election.state
    if state is None:
        assert (
            not unclean
            or strategy not in (ElectionStrategy.OFFLINE, ElectionStrategy.UNCLEAN)
            or not online
        )
        return
    assert state.leader_epoch == 4
    assert state.leader in online
    assert state.leader in state.isr
    assert state.leader in isr or (unclean and state.isr == (state.leader,))
    assert set(state.isr) <= isr | {state.leader}
