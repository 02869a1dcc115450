"""A refused request of a controller names each of its partitions, as in Kafka."""

from __future__ import annotations

import pytest

from ottla.broker.requests.error_responses import leader_and_isr_refused, stop_replica_refused
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)

STALE = ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", [2, 4])
def test_leader_and_isr_by_name(version: int) -> None:
    request = LeaderAndIsrRequest(
        topic_states=[
            LeaderAndIsrTopicState(
                "t", partition_states=[LeaderAndIsrPartitionState(partition_index=3)]
            )
        ]
    )
    response = leader_and_isr_refused(request, version, STALE)
    assert response.error_code == STALE
    assert not response.topics
    rows = [(r.topic_name, r.partition_index, r.error_code) for r in response.partition_errors]
    assert rows == [("t", 3, STALE)]


def test_leader_and_isr_without_groups() -> None:
    states = [LeaderAndIsrPartitionState(topic_name="t", partition_index=1)]
    request = LeaderAndIsrRequest(ungrouped_partition_states=states)
    response = leader_and_isr_refused(request, 1, STALE)
    assert [(r.topic_name, r.partition_index) for r in response.partition_errors] == [("t", 1)]


def test_leader_and_isr_by_topic_id() -> None:
    topic = LeaderAndIsrTopicState(
        "t", b"i" * 16, [LeaderAndIsrPartitionState(partition_index=index) for index in (0, 2)]
    )
    response = leader_and_isr_refused(LeaderAndIsrRequest(topic_states=[topic]), 7, STALE)
    assert response.error_code == STALE
    assert not response.partition_errors
    (row,) = response.topics
    assert row.topic_id == b"i" * 16
    assert [(r.partition_index, r.error_code) for r in row.partition_errors] == [
        (0, STALE),
        (2, STALE),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        StopReplicaRequest(ungrouped_partitions=[StopReplicaPartitionV0("t", 1)]),
        StopReplicaRequest(topics=[StopReplicaTopicV1("t", [1])]),
        StopReplicaRequest(
            topic_states=[StopReplicaTopicState("t", [StopReplicaPartitionState(1)])]
        ),
    ],
)
def test_stop_replica(request_: StopReplicaRequest) -> None:
    response = stop_replica_refused(request_, STALE)
    assert response.error_code == STALE
    rows = [(r.topic_name, r.partition_index, r.error_code) for r in response.partition_errors]
    assert rows == [("t", 1, STALE)]
