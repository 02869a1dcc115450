"""What share groups did, as metrics."""

from __future__ import annotations

import pytest

from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.share.metrics import (
    MAX_GROUPS,
    OTHER_GROUPS,
    ShareStatistics,
    add_share_partitions,
)
from ottla.broker.share.persister import StateSummary
from ottla.broker.share.share_partition import Acknowledgement
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.replicas import TOPIC, run_now
from tests.unit.broker.share.scene import KEY, ShareScene
from tests.unit.broker.share.test_share_partitions import fetched

ACCEPT, RELEASE, REJECT = 1, 2, 3


def read(scene: ShareScene) -> dict[str, object]:
    registry = MetricsRegistry()
    add_share_partitions(registry, scene.shares, scene.share_sessions)
    return {metric.exposed_name: metric.read() for metric in registry.metrics}


def test_deliveries_redeliveries_locks_and_acknowledgements_are_counted() -> None:
    scene = ShareScene(share_record_lock_duration_ms="1000")
    scene.append(4)
    fetched(scene)
    kinds = Acknowledgement(0, 1, [ACCEPT, REJECT])
    run_now(scene.shares.acknowledge(KEY, TOPIC, "m", [kinds]))
    scene.timer.advance(1001)
    fetched(scene)
    run_now(scene.shares.acknowledge(KEY, TOPIC, "m", [Acknowledgement(2, 2, [RELEASE])]))
    found = read(scene)
    assert found["ottla_share_partitions"] == 1
    assert found["ottla_share_sessions"] == 0
    assert found["ottla_share_in_flight_records"] == {("g",): 2}
    assert found["ottla_share_delivered_records_total"] == {("g",): 6}
    assert found["ottla_share_redelivered_records_total"] == {("g",): 2}
    assert found["ottla_share_expired_locks_total"] == {("g",): 2}
    assert found["ottla_share_acknowledged_records_total"] == {
        ("g", "gap"): 0,
        ("g", "accept"): 1,
        ("g", "release"): 1,
        ("g", "reject"): 1,
        ("g", "renew"): 0,
    }


def test_a_refused_acknowledgement_is_not_counted() -> None:
    scene = ShareScene()
    scene.append(1)
    fetched(scene)
    wrong = Acknowledgement(0, 0, [ACCEPT])
    with pytest.raises(KafkaError, match="Member is not the owner"):
        run_now(scene.shares.acknowledge(KEY, TOPIC, "other", [wrong]))
    assert sum(scene.shares.statistics.groups["g"].acknowledged) == 0


def test_series_of_a_group_stay_without_members_and_end_with_the_group() -> None:
    """Those of a deleted group would stay for the life of the broker."""
    scene = ShareScene()
    scene.append(1)
    fetched(scene)
    run_now(scene.shares.release("m", "g"))  # stores the state, as the end of a session does
    scene.shares.drop_group("g")
    for _ in range(3):
        run_now(scene.shares.forget_deleted_groups())
        scene.timer.advance(400_000)
    assert read(scene)["ottla_share_delivered_records_total"] == {("g",): 1}
    fetched(scene)
    assert read(scene)["ottla_share_delivered_records_total"] == {("g",): 2}

    run_now(scene.shares.release("m", "g"))
    scene.shares.drop_group("g")
    run_now(scene.persister.delete(KEY))
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # nothing is known then
    run_now(scene.shares.forget_deleted_groups())
    assert read(scene)["ottla_share_delivered_records_total"] == {("g",): 2}
    scene.timer.advance(5_000)
    run_now(scene.shares.forget_deleted_groups())
    assert [metric for metric in read(scene).values() if metric] == []


def test_a_group_without_members_is_looked_for_less_and_less_often() -> None:
    scene = ShareScene()
    scene.append(1)
    fetched(scene)
    run_now(scene.shares.release("m", "g"))
    scene.shares.drop_group("g")
    asked = 0

    async def summary(key: object, leader_epoch: int) -> StateSummary:
        nonlocal asked
        asked += 1
        return StateSummary(1, 0, 0, -1)

    scene.persister.summary = summary  # type: ignore[method-assign]
    for _ in range(720):  # an hour, every 5 seconds
        run_now(scene.shares.forget_deleted_groups())
        scene.timer.advance(5_000)
    assert asked < 25


def test_groups_beyond_the_limit_are_counted_together() -> None:
    statistics = ShareStatistics()
    for number in range(MAX_GROUPS + 5):
        statistics.locks_expired(KEY._replace(group_id=f"group-{number}"), 1)
    assert len(statistics.groups) == MAX_GROUPS + 1
    assert statistics.groups[OTHER_GROUPS].expired_locks == 5
