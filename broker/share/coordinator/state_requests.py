"""ShareGroupState requests between brokers (KIP-932): one share partition a request.

Each function returns the request of one call of `ShareStatePersister`; `result` finds the row of
the response.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.share.persister import (
    PersistedState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    StateUpdate,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import delete_share_group_state as deleting
from ottla.protocol.messages import initialize_share_group_state as initializing
from ottla.protocol.messages import read_share_group_state as reading
from ottla.protocol.messages import read_share_group_state_summary as summarizing
from ottla.protocol.messages import write_share_group_state as writing


def initialize(
    key: SharePartitionKey, state_epoch: int, start_offset: int
) -> initializing.InitializeShareGroupStateRequest:
    row = initializing.PartitionData(key.partition, state_epoch, start_offset)
    return initializing.InitializeShareGroupStateRequest(
        key.group_id, [initializing.InitializeStateData(key.topic_id, [row])]
    )


def read(key: SharePartitionKey, leader_epoch: int) -> reading.ReadShareGroupStateRequest:
    row = reading.PartitionData(key.partition, leader_epoch)
    return reading.ReadShareGroupStateRequest(
        key.group_id, [reading.ReadStateData(key.topic_id, [row])]
    )


def write(key: SharePartitionKey, update: StateUpdate) -> writing.WriteShareGroupStateRequest:
    row = writing.PartitionData(
        key.partition,
        update.state_epoch,
        update.leader_epoch,
        update.start_offset,
        update.delivery_complete_count,
        [writing.StateBatch(*batch) for batch in update.batches],
    )
    return writing.WriteShareGroupStateRequest(
        key.group_id, [writing.WriteStateData(key.topic_id, [row])]
    )


def delete(key: SharePartitionKey) -> deleting.DeleteShareGroupStateRequest:
    return deleting.DeleteShareGroupStateRequest(
        key.group_id,
        [deleting.DeleteStateData(key.topic_id, [deleting.PartitionData(key.partition)])],
    )


def summary(
    key: SharePartitionKey, leader_epoch: int
) -> summarizing.ReadShareGroupStateSummaryRequest:
    row = summarizing.PartitionData(key.partition, leader_epoch)
    return summarizing.ReadShareGroupStateSummaryRequest(
        key.group_id, [summarizing.ReadStateSummaryData(key.topic_id, [row])]
    )


def result(key: SharePartitionKey, response: Any) -> Any:
    """Return the row of the share partition. Raises KafkaError with its error code, or
    UNKNOWN_SERVER_ERROR when there is no such row."""
    for topic in response.results:
        for row in topic.partitions:
            if topic.topic_id == key.topic_id and row.partition == key.partition:
                if row.error_code:
                    raise KafkaError(row.error_code, row.error_message or "")
                return row
    raise KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "The response of the share coordinator has no row of the share partition.",
    )


def state_of(row: reading.PartitionResult) -> PersistedState:
    batches = tuple(batch_of(each) for each in row.state_batches)
    return PersistedState(row.state_epoch, row.start_offset, batches)


def summary_of(row: summarizing.PartitionResult) -> StateSummary:
    return StateSummary(
        row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count
    )


def batch_of(row: reading.StateBatch | writing.StateBatch) -> StateBatch:
    return StateBatch(row.first_offset, row.last_offset, row.delivery_state, row.delivery_count)
