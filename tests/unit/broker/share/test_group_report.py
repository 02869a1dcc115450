from __future__ import annotations

import json
from typing import Any

from ottla.broker.share.group_report import report
from ottla.broker.share.share_partition import Acknowledgement
from tests.doubles.replicas import TOPIC, run_now
from tests.unit.broker.share.scene import KEY, ShareScene
from tests.unit.broker.share.test_share_partitions import fetched


def of(scene: ShareScene, group_id: str = "g") -> Any:
    return json.loads(report(scene.shares, group_id, scene.clock.now_ms()))


def test_records_in_flight_locks_and_deliveries() -> None:
    scene = ShareScene(share_record_lock_duration_ms="5000")
    scene.append(3)
    assert of(scene) == {"partitions": [], "counts": None}
    fetched(scene)
    scene.timer.advance(2000)
    (row,) = of(scene)["partitions"]
    assert (row["topic"], row["partition"], row["start_offset"], row["end_offset"]) == (
        *(TOPIC, 0, 0, 3),
    )
    assert (row["in_flight"], row["locked"], row["members"]) == (3, 3, 1)
    assert (row["oldest_lock_ms"], row["most_deliveries"]) == (2000, 1)
    run_now(scene.shares.acknowledge(KEY, TOPIC, "m", [Acknowledgement(0, 0, [1])]))
    scene.timer.advance(3001)
    found = of(scene)
    (row,) = found["partitions"]
    assert (row["in_flight"], row["locked"], row["oldest_lock_ms"]) == (2, 0, None)
    assert found["counts"]["acknowledged"]["accept"] == 1
    assert found["counts"]["expired_locks"] == 2
    assert of(scene, "other") == {"partitions": [], "counts": None}
