"""Throttles of `ottla partitions reassign` while other reassignments are in progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.reassign import app
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC, BROKER = 2, 4
# Partition 1 moves from broker 1 to broker 3, for another plan than that of the tests.
MOVING = OngoingPartitionReassignment(1, [3, 1], [3], [1])


class Cluster:
    """The topic t: partition 0 on broker 2, and partition 1, which may be moving."""

    json = False
    timeout_ms = 1000

    def __init__(self, moving: list[OngoingPartitionReassignment]) -> None:
        self.client = self
        self.altered: dict[tuple[int, str], dict[str, str | None]] = {}
        self._moving = [OngoingTopicReassignment("t", moving)] if moving else []
        self.left: list[object] = []

    def metadata(self, _names: list[str]) -> MetadataResponse:
        rows = [
            MetadataResponsePartition(partition_index=number, replica_nodes=nodes)
            for number, nodes in enumerate(([2], [3, 1]))
        ]
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=rows)])

    def broker_ids(self) -> list[int]:
        return [1, 2, 3]

    def call(self, kind: type, request: Any, _to: object = None) -> Any:
        if kind is DescribeConfigsResponse:
            return kind(results=self.left)
        if kind is ListPartitionReassignmentsResponse:
            return ListPartitionReassignmentsResponse(topics=self._moving)
        if isinstance(request, AlterPartitionReassignmentsRequest):
            return AlterPartitionReassignmentsResponse()
        assert isinstance(request, IncrementalAlterConfigsRequest)
        (resource,) = request.resources
        key = (resource.resource_type, resource.resource_name)
        self.altered[key] = {row.name: row.value for row in resource.configs}
        row = AlterConfigsResourceResponse(0, None, *key)
        return IncrementalAlterConfigsResponse(responses=[row])

    def close(self) -> None:
        """Nothing is open."""


def run(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, *arguments: str) -> str:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: cluster)
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stderr


def plan(tmp_path: Path, replicas: list[int]) -> str:
    path = tmp_path / "plan.json"
    row = {"topic": "t", "partition": 0, "replicas": replicas}
    path.write_text(json.dumps({"version": 1, "partitions": [row]}))
    return str(path)


def test_verify_leaves_the_throttle_of_other_reassignments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster([MOVING])
    said = run(monkeypatch, cluster, "verify", plan(tmp_path, [2]))
    assert cluster.altered == {}
    assert "Throttles stay" in said
    cluster = Cluster([])
    run(monkeypatch, cluster, "verify", plan(tmp_path, [2]))
    assert set(cluster.altered) == {(TOPIC, "t"), *((BROKER, name) for name in "123")}


def test_cancel_leaves_the_throttle_of_other_reassignments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = OngoingPartitionReassignment(0, [1, 2], [1], [2])
    cluster = Cluster([own, MOVING])
    run(monkeypatch, cluster, "cancel", plan(tmp_path, [1]))
    assert cluster.altered == {}
    run(monkeypatch, cluster, "cancel")  # all
    assert (BROKER, "1") in cluster.altered


def test_an_additional_plan_keeps_the_throttle_of_the_same_topic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster([MOVING])
    options = ["--throttle", "1000", "--additional"]
    run(monkeypatch, cluster, "execute", plan(tmp_path, [3]), *options)
    assert cluster.altered[TOPIC, "t"] == {
        "leader.replication.throttled.replicas": "1:1,0:2",
        "follower.replication.throttled.replicas": "1:3,0:3",
    }
