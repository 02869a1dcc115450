"""A transaction that no producer will ever end, as left by a message held up in the network.

The records come in after the coordinator has forgotten all about the transaction. A broker that
verifies (KIP-890) does not let them in; so this is for one started with
`transaction_partition_verification_enable=false`.
"""

from __future__ import annotations

import time

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.operations import TRANSACTION, Versions
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition

AGE_MS = 20 * 60_000  # older than any transaction may get


def produce_late(bootstrap: str, partition: TopicPartition, value: bytes) -> tuple[int, int]:
    """Writes a record of a transaction that was never begun; the producer id and error code."""
    with BlockingClient(bootstrap, client_id="late") as client:
        begun = client.call_coordinator(
            "forgotten", InitProducerIdRequest("forgotten", 60_000), key_type=TRANSACTION
        )
        assert isinstance(begun, InitProducerIdResponse)
        assert begun.error_code == 0
        batch = build_batch(
            [(time.time_ns() // 1_000_000 - AGE_MS, None, value, ())],
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        rows = [PartitionProduceData(partition.partition, batch)]
        request = ProduceRequest(
            transactional_id="forgotten",
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(partition.topic, rows)],
        )
        leader = client.leader(partition).node_id
        # From version 12 on a produce adds its partition to the transaction.
        response = client.send(leader, request, versions=Versions(high=11))
        assert isinstance(response, ProduceResponse)
        return begun.producer_id, response.responses[0].partition_responses[0].error_code
