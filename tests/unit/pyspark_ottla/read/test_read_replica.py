"""Which replica the next fetch goes to, with a clock set by hand."""

from __future__ import annotations

from pyspark_ottla.read.read_replica import LEASE_SECONDS, ReadReplica


def test_a_preferred_replica_has_a_lease() -> None:
    now = [10.0]
    choice = ReadReplica(lambda: now[0])
    assert (choice.node_id, choice.follows) == (None, True)
    choice.prefer(3)
    now[0] += LEASE_SECONDS - 1
    assert choice.node_id == 3
    now[0] += 1
    assert (choice.node_id, choice.follows) == (None, True)


def test_the_leader_may_name_a_replica_again_after_a_while() -> None:
    now = [10.0]
    choice = ReadReplica(lambda: now[0])
    choice.prefer(3)
    choice.use_leader()
    assert (choice.node_id, choice.follows) == (None, False)
    now[0] += LEASE_SECONDS
    assert (choice.node_id, choice.follows) == (None, True)
