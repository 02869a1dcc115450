"""A cluster that stores messages of Kafka 0.9: they have no leader epochs, so that followers
truncate to the high watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.records.reader import iterate_entries
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.cluster_view import view

pytestmark = pytest.mark.zookeeper

OLD = {"message.format.version": "0.9.0"}


def test_replicas_are_equal_after_kills_and_stops(tmp_path: Path) -> None:
    with (
        start_cluster(tmp_path, inter_broker_protocol_version="2.8") as cluster,
        view(cluster) as seen,
    ):
        seen.create("old", [1, 2, 3], **OLD)
        seen.produce("old", 300)
        cluster[1].kill()
        seen.wait_for_leaders("old", [2], 2, 3)
        seen.produce("old", 300)
        cluster[1].start()
        seen.wait_for_isr("old", {1, 2, 3})
        assert cluster[2].stop() == 0
        seen.produce("old", 300)
        cluster[2].start()
        seen.wait_for_isr("old", {1, 2, 3})
        seen.alter_config(2, "old", **{"message.format.version": "2.8"})
        seen.produce("old", 300)
        seen.wait_for_same_data("old", 1, 2, 3)
        entries = [header for _, header in iterate_entries(seen.log_bytes(1, "old"))]
        assert [header.magic for header in entries[:900]] == [0] * 900
        assert {header.magic for header in entries[900:]} == {2}
        assert [header.last_offset for header in entries[:900]] == list(range(900))
        assert entries[-1].last_offset == 1199
