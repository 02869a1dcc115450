"""Replicas that a reassignment adds do not make a partition under-replicated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.topics import app as topics
from ottla.protocol.messages.describe_configs import DescribeConfigsResponse
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


class Cluster:
    """Broker 3 is added to both partitions; of the second, broker 2 is not in sync either."""

    json = True
    timeout_ms = 1000

    def __init__(self) -> None:
        self.client = self

    def metadata(self, _: list[str] | None = None) -> MetadataResponse:
        rows = [
            MetadataResponsePartition(
                partition_index=index, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=isr
            )
            for index, isr in enumerate(([1, 2], [1]))
        ]
        found = [MetadataResponseTopic(name="t", partitions=rows)]
        return MetadataResponse(topics=found, controller_id=1)

    def call(self, kind: type, _request: Any, _to: Any = None) -> Any:
        if kind is DescribeConfigsResponse:
            return DescribeConfigsResponse(results=[])
        rows = [OngoingPartitionReassignment(index, [1, 2, 3], [3], []) for index in (0, 1)]
        return ListPartitionReassignmentsResponse(topics=[OngoingTopicReassignment("t", rows)])

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(name="run")
def connected_runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster())

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(topics, list(arguments))
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    return run


def test_the_list_counts_the_other_partition(run: Any) -> None:
    assert [row["under_replicated"] for row in run("list")] == [1]


def test_describe_names_both_states(run: Any) -> None:
    (topic,) = run("describe", "t")
    states = [row["state"] for row in topic["partitions"]]
    assert states == ["adding replicas", "under-replicated"]
    (topic,) = run("describe", "t", "--under-replicated")
    assert [row["partition"] for row in topic["partitions"]] == [1]
