"""Responses to requests of a controller that are refused as a whole.

As in Kafka's `LeaderAndIsrRequest.getErrorResponse` and `StopReplicaRequest.getErrorResponse`, the
code is in the response and in the row of each partition of the request.
"""

from __future__ import annotations

from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)

# The first version whose rows are grouped by topic id.
_FIRST_WITH_TOPIC_IDS = 5


def leader_and_isr_refused(
    request: LeaderAndIsrRequest, version: int, code: int
) -> LeaderAndIsrResponse:
    """The response in a version, with `code` for each partition."""
    response = LeaderAndIsrResponse(error_code=code)
    if version < _FIRST_WITH_TOPIC_IDS:
        named = [(state.topic_name, state) for state in request.ungrouped_partition_states]
        named += [
            (topic.topic_name, state)
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        response.partition_errors = [
            LeaderAndIsrPartitionError(name, state.partition_index, code) for name, state in named
        ]
    else:
        response.topics = [
            LeaderAndIsrTopicError(
                topic.topic_id,
                [
                    LeaderAndIsrPartitionError("", state.partition_index, code)
                    for state in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
    return response


def stop_replica_refused(request: StopReplicaRequest, code: int) -> StopReplicaResponse:
    """The response with `code` for each partition."""
    named = [(each.topic_name, each.partition_index) for each in request.ungrouped_partitions]
    for topic in request.topics:
        named += [(topic.name, index) for index in topic.partition_indexes]
    for group in request.topic_states:
        named += [(group.topic_name, state.partition_index) for state in group.partition_states]
    return StopReplicaResponse(
        error_code=code,
        partition_errors=[StopReplicaPartitionError(name, index, code) for name, index in named],
    )
