"""DescribeProducers (61), version 0: the active producers of partitions led here (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests.error_map import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.storage.log.log import Log


class DescribeProducersHandler:
    """Reads the producer state of local logs."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    def handle(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        response = DescribeProducersResponse()
        for topic in request.topics:
            rows = []
            for index in topic.partition_indexes:
                row = PartitionResponse(index)
                try:
                    log = self._replica_manager.partition(topic.name, index).leader_log()
                    row.active_producers = _producers(log)
                except Exception as error:
                    row.error_code = error_code(error)
                    row.error_message = error_message(error)
                rows.append(row)
            response.topics.append(TopicResponse(topic.name, rows))
        return response


def _producers(log: Log) -> list[ProducerState]:
    return [
        ProducerState(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        for entry in log.producer_state.producers.values()
    ]
