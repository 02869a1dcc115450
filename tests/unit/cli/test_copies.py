"""What replicas have left to copy, and how long that takes."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.cli import copies
from ottla.cli.broker_status import BrokerStatus
from ottla.cli.copies import progress_rows, readable, restart_line
from ottla.protocol.client.errors import NoBrokersAvailableError
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Cluster:
    """Broker 1 leads both partitions; 2 gets the first, 3 was away, and 4 is down."""

    timeout_ms = 1000

    def __init__(self, copied: list[dict[int, int]], *, has_controller: bool = True) -> None:
        """`copied`: the sizes by broker at each look."""
        self.copied = copied
        self.asked: list[int] = []
        self._has_controller = has_controller

    def call(self, kind: type, request: Any, to: Any) -> Any:
        if kind is ListPartitionReassignmentsResponse:
            if not self._has_controller:
                raise NoBrokersAvailableError("there is no controller")
            rows = [OngoingPartitionReassignment(0, [2, 1], [2], [])]
            return ListPartitionReassignmentsResponse(topics=[OngoingTopicReassignment("t", rows)])
        assert kind is DescribeLogDirsResponse
        self.asked.append(to.node_id)
        if to.node_id == 1 and self.asked.count(1) > 1:
            self.copied = self.copied[1:]
        size = 10_000 if to.node_id == 1 else self.copied[0].get(to.node_id, 0)
        rows_ = [
            DescribeLogDirsPartition(each, size)
            for topic in request.topics
            for each in topic.partitions
        ]
        topics = [DescribeLogDirsTopic("t", rows_)]
        return DescribeLogDirsResponse(results=[DescribeLogDirsResult(topics=topics)])


def metadata() -> MetadataResponse:
    rows = [
        MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[2, 1], isr_nodes=[1]
        ),
        MetadataResponsePartition(
            partition_index=1, leader_id=1, replica_nodes=[1, 3, 4], isr_nodes=[1]
        ),
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=each) for each in (1, 2, 3)],
        topics=[MetadataResponseTopic(name="t", partitions=rows)],
    )


@pytest.fixture(autouse=True)
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass between the looks."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(copies.time, "sleep", sleep)
    monkeypatch.setattr(copies.time, "monotonic", lambda: now)


def test_each_broker_that_copies_has_a_row() -> None:
    cluster: Any = Cluster([{2: 2000, 3: 10_000}, {2: 4000, 3: 10_000}])
    states = {3: BrokerStatus("h:1", {"phase": "loading", "reason": "3 of 4 logs are loaded"})}
    rows = progress_rows(cluster, metadata(), states)
    assert [each["broker"] for each in rows] == [2, 3, 4]
    moving, restarted, down = rows
    assert (moving["reassigned"], moving["left"], moving["rate"]) == (1, 6000, 1000)
    assert moving["seconds_left"] == 6
    assert (restarted["left"], restarted["state"]) == (0, "3 of 4 logs are loaded")
    assert (down["out_of_sync"], down["left"], down["rate"]) == (1, None, None)
    assert 4 not in cluster.asked, "a broker that is down is not waited for"
    assert readable(moving)["time_left"] == "6 s"


def test_nothing_is_asked_where_all_replicas_are_in_sync() -> None:
    assert progress_rows(None, MetadataResponse(), {}) == []  # type: ignore[arg-type]


def test_without_a_controller_the_rest_is_shown() -> None:
    cluster: Any = Cluster([{2: 10_000, 3: 10_000}], has_controller=False)
    rows = progress_rows(cluster, metadata(), {})
    assert [each["reassigned"] for each in rows] == [0, 0, 0]
    assert cluster.asked.count(1) == 1, "nothing is left, so one look is enough"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (7 * 3600 + 130, "7 h 2 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert copies.duration_text(seconds) == text


def test_a_rolling_restart() -> None:
    states = {
        number: BrokerStatus("h:1", {"uptime_seconds": uptime})
        for number, uptime in ((1, 300.0), (2, 40.0), (3, 86_400.0))
    }
    assert restart_line(states, [{"broker": 2}]) == (
        "2 of 3 brokers started in the last hour (1, 2); others: 3; not in sync yet: 2"
    )
    assert restart_line({3: states[3]}, []) == ""
    assert restart_line({1: states[1], 2: states[2]}, []) == ""
