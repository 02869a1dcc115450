"""What the check of `make chaos-share` finds."""

from __future__ import annotations

from ottla.broker.share.coordinator.records import snapshot_record, update_record
from ottla.broker.share.coordinator.state import first_state
from ottla.broker.share.persister import RecordState, SharePartitionKey, StateBatch, StateUpdate
from tests.doubles.share_workers import ACCEPT, Event
from tests.doubles.stored_share_states import StateReplay, Stored

TOPIC_ID = bytes(15) + b"\1"
KEY = SharePartitionKey("workers", TOPIC_ID, 0)
FIRST = first_state(0, 0, 1000, 0)
DELIVERED, ACCEPTED = Event("a", 1, 1), Event("a", 1, 1, ACCEPT)
UNCONFIRMED = ACCEPTED._replace(is_confirmed=False)


def update(start_offset: int, *batches: StateBatch, leader_epoch: int = 1) -> StateUpdate:
    return StateUpdate(0, leader_epoch, start_offset, -1, batches)


def replayed(*updates: StateUpdate) -> StateReplay:
    replay = StateReplay(KEY.group_id)
    replay.add(*snapshot_record(KEY, FIRST), 0)
    for offset, each in enumerate(updates, 1):
        state = FIRST._replace(leader_epoch=each.leader_epoch, start_offset=each.start_offset)
        replay.add(*update_record(KEY, state, each), offset)
    return replay


def problems(replay: StateReplay, *events: Event, copies: int = 1) -> list[str]:
    records = {0: [(offset, "a") for offset in range(copies)]}
    stored = Stored(records, replay.states_of(TOPIC_ID), replay.problems)
    return stored.compared({"a": list(events)}, ["a"])


def test_what_is_stored_as_the_workers_saw_it() -> None:
    done = replayed(update(1))
    above = replayed(update(0, StateBatch(0, 0, RecordState.ACKNOWLEDGED, 1)))
    for replay in (done, above):
        assert not Stored({0: [(0, "a")]}, replay.states_of(TOPIC_ID), []).unfinished()
        assert problems(replay, DELIVERED, ACCEPTED) == []
        assert problems(replay, DELIVERED, UNCONFIRMED) == []
        assert problems(replay, DELIVERED._replace(delivery_count=5)) == []


def test_a_lost_record_is_found() -> None:
    (problem,) = problems(replayed(update(1)), DELIVERED)
    assert "no worker acknowledged it" in problem
    (problem,) = problems(replayed(update(1)), DELIVERED, ACCEPTED, copies=2)
    assert problem == "a is in the log 2 times"


def test_an_acknowledgement_that_is_not_stored_is_found() -> None:
    available = replayed(update(0, StateBatch(0, 0, RecordState.AVAILABLE, 1)))
    (problem,) = problems(available, DELIVERED, ACCEPTED)
    assert "is stored as in state 0, after" in problem
    (problem,) = problems(replayed(), DELIVERED, UNCONFIRMED)
    assert problem == "a at 0:0 is stored as never acknowledged"


def test_records_in_a_wrong_order_are_found() -> None:
    (problem,) = replayed(update(1, leader_epoch=2), update(1, leader_epoch=1)).problems
    assert problem.startswith("the leader epoch decreases")
    many = replayed(update(0, StateBatch(0, 0, RecordState.AVAILABLE, 6)))
    assert many.problems[0].startswith("delivered 6 times")
