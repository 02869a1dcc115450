"""Where a fetch goes to."""

from __future__ import annotations

from pyspark_ottla.cluster.fetch_source import LEADER, FetchSource


def test_a_look_at_the_leader_names_no_rack() -> None:
    assert LEADER.node_id is None
    assert not LEADER.names_rack
    assert FetchSource().names_rack
