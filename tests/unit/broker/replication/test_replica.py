from __future__ import annotations

from ottla.broker.replication.replica import NEVER, FollowerReplica


def test_reaching_the_end_proves_it_for_now() -> None:
    replica = FollowerReplica(2)
    replica.record_fetch(10, 0, 10, now_ms=100)
    assert replica.last_caught_up_ms == 100
    assert replica.log_end_offset == 10


def test_reaching_the_end_of_last_time_proves_it_for_then() -> None:
    """A leader that is written to all the time: the follower is always a little behind."""
    replica = FollowerReplica(2)
    replica.record_fetch(5, 0, 10, now_ms=100)
    assert replica.last_caught_up_ms == NEVER
    replica.record_fetch(10, 0, 20, now_ms=200)
    assert replica.last_caught_up_ms == 100
    replica.record_fetch(15, 0, 30, now_ms=300)
    assert replica.last_caught_up_ms == 100, "it did not get as far as the end of last time"


def test_caught_up_is_having_all_or_having_had_it_lately() -> None:
    replica = FollowerReplica(2)
    replica.record_fetch(10, 0, 10, now_ms=100)
    assert replica.is_caught_up(10, now_ms=10_000, lag_time_max_ms=10)
    assert replica.is_caught_up(11, now_ms=110, lag_time_max_ms=10)
    assert not replica.is_caught_up(11, now_ms=111, lag_time_max_ms=10)


def test_a_new_epoch_gives_those_in_sync_time_to_prove_it() -> None:
    replica = FollowerReplica(2)
    replica.record_fetch(10, 3, 10, now_ms=100)
    replica.reset(500, 20, new_leader=False, in_sync=True)
    assert (replica.log_end_offset, replica.last_caught_up_ms) == (10, 500)
    replica.reset(600, 20, new_leader=True, in_sync=False)
    assert (replica.log_end_offset, replica.last_caught_up_ms) == (-1, NEVER)


def state(replica: FollowerReplica) -> tuple[int, ...]:
    return (
        replica.broker_epoch,
        replica.log_end_offset,
        replica.log_start_offset,
        replica.last_caught_up_ms,
        replica.last_fetch_ms,
        replica.last_fetch_leader_end_offset,
    )


def test_a_follower_that_has_not_fetched_yet_has_nothing() -> None:
    assert state(FollowerReplica(2)) == (-1, -1, -1, NEVER, NEVER, 0)
    assert FollowerReplica(2).refused_until_ms == NEVER


def test_a_new_leader_starts_without_offsets_of_its_followers() -> None:
    replica = FollowerReplica(2)
    replica.broker_epoch = 40
    replica.record_fetch(10, 3, 12, now_ms=100)
    assert state(replica) == (40, 10, 3, NEVER, 100, 12)
    replica.reset(500, 20, new_leader=True, in_sync=True)
    assert state(replica) == (-1, -1, -1, 500, NEVER, 0)


def test_a_leader_of_the_next_epoch_keeps_what_it_knows() -> None:
    replica = FollowerReplica(2)
    replica.broker_epoch = 40
    replica.record_fetch(10, 3, 12, now_ms=100)
    replica.reset(500, 20, new_leader=False, in_sync=True)
    assert state(replica) == (40, 10, 3, 500, 500, 20)
    replica.reset(600, 21, new_leader=False, in_sync=False)
    assert state(replica) == (40, 10, 3, NEVER, NEVER, 21)
