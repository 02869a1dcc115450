"""`ottla partitions reassign` while a broker is down, a topic is gone, or a part is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ottla.cli.reassign import app
from ottla.protocol.client.errors import BrokerConnectionError, UnknownBrokerError
from ottla.protocol.client.operations import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
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

TOPIC, BROKER = 2, 4
SIZES = {1: 100, 3: 40}
LEADERS, FOLLOWERS = (f"{side}.replication.throttled.replicas" for side in ("leader", "follower"))


class Cluster:
    """The topic t, whose partitions are on the brokers 1 and 2; broker 2 is down."""

    timeout_ms = 1000

    def __init__(self, *moving: OngoingPartitionReassignment, json: bool = False) -> None:
        self.json = json
        self.client = self
        self.altered: dict[tuple[int, str], dict[str, str | None]] = {}
        self.refused: set[int] = set()
        self.lost = False
        self.left: list[DescribeConfigsResult] = []
        self._moving = {row.partition_index: row for row in moving}

    def metadata(self, names: list[str] | None) -> MetadataResponse:
        rows = [
            MetadataResponsePartition(
                partition_index=number,
                replica_nodes=self._moving[number].replicas if number in self._moving else [1, 2],
            )
            for number in range(2)
        ]
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        brokers = [MetadataResponseBroker(node_id=number) for number in self.broker_ids()]
        return MetadataResponse(
            controller_id=1,
            brokers=brokers,
            topics=[
                MetadataResponseTopic(name="t", partitions=rows)
                if name == "t"
                else MetadataResponseTopic(error_code=gone, name=name)
                for name in (names or ["t"])
            ],
        )

    def broker_ids(self) -> list[int]:
        return [1, 3, 4]

    def call(self, kind: type, request: Any, to: object = None) -> Any:
        if kind is DescribeConfigsResponse:
            return kind(results=self.left)
        if isinstance(to, Node) and to.node_id not in self.broker_ids():
            raise UnknownBrokerError(f"the cluster has no broker {to.node_id}, or it is down")
        if kind is ListPartitionReassignmentsResponse:
            rows = list(self._moving.values())
            return kind(topics=[OngoingTopicReassignment("t", rows)] if rows else [])
        if isinstance(request, AlterPartitionReassignmentsRequest):
            return self._alter(request)
        if kind is DescribeLogDirsResponse:
            assert isinstance(to, Node)
            if to.node_id not in SIZES:
                return kind(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            parts = [
                DescribeLogDirsPartition(partition_index=n, partition_size=SIZES[to.node_id])
                for n in self._moving
            ]
            topics = [DescribeLogDirsTopic(name="t", partitions=parts)]
            return kind(results=[DescribeLogDirsResult(topics=topics)])
        (resource,) = request.resources
        key = (resource.resource_type, resource.resource_name)
        self.altered[key] = {row.name: row.value for row in resource.configs}
        row = AlterConfigsResourceResponse(0, None, *key)
        return IncrementalAlterConfigsResponse(responses=[row])

    def _alter(self, request: AlterPartitionReassignmentsRequest) -> Any:
        if self.lost:
            raise BrokerConnectionError("the connection broke")
        rows = [
            ReassignablePartitionResponse(
                partition_index=row.partition_index,
                error_code=ErrorCode.INVALID_REPLICA_ASSIGNMENT
                if row.partition_index in self.refused
                else ErrorCode.NONE,
            )
            for topic in request.topics
            for row in topic.partitions
        ]
        topics = [ReassignableTopicResponse(name="t", partitions=rows)]
        return AlterPartitionReassignmentsResponse(responses=topics)

    def close(self) -> None:
        """Nothing is open."""


def run(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, *arguments: str) -> Result:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: cluster)
    return CliRunner().invoke(app, list(arguments))


def plan(tmp_path: Path, **replicas: list[int]) -> str:
    """A plan for partition 0 of each topic, and for partition 1 of t as `t1`."""
    rows = [
        {"topic": name[0], "partition": int(name[1:] or 0), "replicas": numbers}
        for name, numbers in replicas.items()
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def test_the_old_assignment_is_printed_if_a_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(json=True)
    cluster.refused = {1}
    done = run(monkeypatch, cluster, "execute", plan(tmp_path, t=[1, 3], t1=[1, 9]))
    assert done.exit_code == 1
    assert "t-1: INVALID_REPLICA_ASSIGNMENT" in done.stderr
    found = json.loads(done.stdout)
    assert [row["partition"] for row in found["started"]["partitions"]] == [0]
    assert [row["replicas"] for row in found["before"]["partitions"]] == [[1, 2], [1, 2]]


def test_the_old_assignment_is_printed_if_the_response_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster()
    cluster.lost = True
    done = run(monkeypatch, cluster, "execute", plan(tmp_path, t=[1, 3]))
    assert done.exit_code == 3
    assert '"replicas":[1,2]' in done.stdout
    assert "started" not in done.stdout


def test_what_is_cancelled_is_said_if_a_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moving = (OngoingPartitionReassignment(number, [3, 1], [3], [1]) for number in range(2))
    cluster = Cluster(*moving, json=True)
    cluster.refused = {1}
    done = run(monkeypatch, cluster, "cancel")
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"cancelled": ["t-0"]})


def test_throttles_that_are_left_behind_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another plan: they slow down the replication of a broker that starts again, too."""
    cluster = Cluster()
    set_here = DescribeConfigsResourceResult(LEADERS, "0:1,0:2", config_source=1)
    cluster.left = [
        DescribeConfigsResult(resource_type=TOPIC, resource_name="t", configs=[set_here])
    ]
    done = run(monkeypatch, cluster, "cancel")
    assert f"replication is throttled: topic t has {LEADERS}=0:1,0:2" in done.stderr
    assert "ottla configs unset" in done.stderr


def test_replicas_of_a_broker_that_is_down_are_replaced_with_a_throttle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster()
    done = run(monkeypatch, cluster, "execute", plan(tmp_path, t=[1, 3]), "--throttle", "1000")
    assert f"Check it with `ottla partitions reassign verify {tmp_path}/plan.json`." in done.stdout
    assert (done.exit_code, done.stderr) == (0, "Broker 2 is not alive, and gets no throttle.\n")
    assert set(cluster.altered) == {(TOPIC, "t"), (BROKER, "1"), (BROKER, "3")}


def test_a_plan_that_is_reached_already_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor a throttle, which nobody would remove: there is nothing to verify."""
    cluster = Cluster()
    reached = ["execute", plan(tmp_path, t=[1, 2], t1=[1, 2]), "--throttle", "1000"]
    done = run(monkeypatch, cluster, *reached)
    assert (done.exit_code, cluster.altered) == (0, {})
    assert done.stdout == "Nothing to do: 2 partition(s) are as planned already.\n"
    found = json.loads(run(monkeypatch, Cluster(json=True), *reached).stdout)
    assert found["started"]["partitions"] == []
    assert len(found["before"]["partitions"]) == 2
    done = run(monkeypatch, cluster, "execute", plan(tmp_path, t=[1, 2], t1=[2, 1]))
    assert "Reassignment of 1 partition(s) started." in done.stdout
    assert "1 other partition(s) are as planned already." in done.stdout
    moving = Cluster(OngoingPartitionReassignment(0, [1, 3, 2], [3], [2]))
    back = run(monkeypatch, moving, "execute", plan(tmp_path, t=[1, 2]), "--additional")
    assert "Reassignment of 1 partition(s) started." in back.stdout


def test_a_throttle_of_a_plan_that_is_in_progress_is_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(OngoingPartitionReassignment(0, [1, 3, 2], [3], [2]))
    again = ["execute", plan(tmp_path, t=[1, 3], t1=[1, 4]), "--throttle", "5", "--additional"]
    assert run(monkeypatch, cluster, *again).exit_code == 0
    assert cluster.altered[TOPIC, "t"] == {LEADERS: "0:1,0:2,1:1,1:2", FOLLOWERS: "0:3,1:4"}
    assert (BROKER, "3") in cluster.altered


def test_the_old_assignment_of_what_moves_is_without_what_is_added(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(OngoingPartitionReassignment(0, [1, 3, 2], [3], [2]), json=True)
    again = ["execute", plan(tmp_path, t=[1, 4]), "--additional"]
    (row,) = json.loads(run(monkeypatch, cluster, *again).stdout)["before"]["partitions"]
    assert row["replicas"] == [1, 2]


def test_a_plan_is_generated_while_a_partition_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(OngoingPartitionReassignment(0, [1, 3, 2], [3], [2]), json=True)
    plans = json.loads(run(monkeypatch, cluster, "generate", "t").stdout)
    fewer = run(monkeypatch, cluster, "generate", "t", "--brokers", "1")
    assert (fewer.exit_code, fewer.stdout) == (1, "")
    assert "t needs 2 brokers for its replicas, and there are 1; --replication-factor 1 lowers" in (
        fewer.stderr
    )
    for row in (*plans["current"]["partitions"], *plans["proposed"]["partitions"]):
        assert len(row["replicas"]) == 2


def test_a_broker_that_is_down_does_not_end_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    known = OngoingPartitionReassignment(0, [1, 3, 2], [3], [2])
    unknown = OngoingPartitionReassignment(1, [2, 3], [3], [2])
    done = run(monkeypatch, Cluster(known, unknown, json=True), "list")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["copied"], row["left"]) for row in rows] == [(40, 60), (None, None)]


def test_sizes_that_the_user_may_not_see_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = OngoingPartitionReassignment(0, [1, 4], [4], [])
    (row,) = json.loads(run(monkeypatch, Cluster(moving, json=True), "list").stdout)
    assert (row["copied"], row["left"]) == (None, None)


def test_throttles_are_removed_though_a_topic_of_the_plan_is_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(json=True)
    done = run(monkeypatch, cluster, "verify", plan(tmp_path, t=[1, 2], d=[1, 3]))
    assert done.exit_code == 1
    states = {row["topic"]: row["state"] for row in json.loads(done.stdout)}
    assert states == {"d": "does not exist", "t": "complete"}
    assert {(TOPIC, "t"), (BROKER, "1")} <= set(cluster.altered)
