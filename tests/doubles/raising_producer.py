"""A producer of transaction version 2 (KIP-890, second part), request by request."""

from __future__ import annotations

from typing import Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

TRANSACTION_VERSION = "transaction.version"
AGAIN = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )
)


def level_at(bootstrap: str) -> tuple[int, int]:
    """The finalized level of `transaction.version`, 0 for off, and the epoch of the features."""
    with Wire(bootstrap) as wire:
        response: Any = wire.ask(ApiVersionsRequest("test", "1"), 4)
    levels = {row.name: row.max_version_level for row in response.finalized_features}
    return levels.get(TRANSACTION_VERSION, 0), response.finalized_features_epoch


class RaisingProducer:
    """Sends to one broker, which leads the partition `topic`-0; `coordinator` is looked up."""

    def __init__(self, bootstrap: str, transactional_id: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.topic = topic
        self.producer_id, self.epoch, self.sequence = -1, -1, 0

    def coordinator(self) -> str:
        """Its address, once there is one."""
        found: list[str] = []

        def look() -> bool:
            with Wire(self.bootstrap) as wire:
                request = FindCoordinatorRequest(
                    key_type=1, coordinator_keys=[self.transactional_id]
                )
                response: Any = wire.ask(request, 4)
            (row,) = response.coordinators
            found[:] = [f"{row.host}:{row.port}"]
            return row.error_code == ErrorCode.NONE

        eventually(look, "there is no coordinator")
        return found[0]

    def ask(self, address: str, request: Message, version: int) -> Any:
        with Wire(address) as wire:
            return wire.ask(request, version)

    def init(self) -> tuple[int, int]:
        request = InitProducerIdRequest(self.transactional_id, 60_000, -1, -1)

        def begin() -> bool:
            response = self.ask(self.coordinator(), request, 4)
            if response.error_code:
                assert response.error_code in AGAIN, response.error_code
                return False
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequence = 0
            return True

        eventually(begin, "no producer id")
        return self.producer_id, self.epoch

    def produce(self, value: bytes, version: int = 12) -> int:
        """The error code."""
        batch = build_batch(
            [(1, None, value, None)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        rows = [PartitionProduceData(0, bytearray(batch))]
        request = ProduceRequest(
            self.transactional_id, -1, 10_000, [TopicProduceData(self.topic, rows)]
        )
        codes: list[int] = []

        def send() -> bool:
            response = self.ask(self.bootstrap, request, version)
            codes[:] = [response.responses[0].partition_responses[0].error_code]
            return codes[0] not in AGAIN

        eventually(send, "the batch is not written")
        self.sequence += codes[0] == ErrorCode.NONE
        return codes[0]

    def end(self, *, committed: bool, version: int = 5) -> int:
        """The error code; the producer goes on with what it is given."""
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, committed)
        codes: list[int] = []

        def send() -> bool:
            response = self.ask(self.coordinator(), request, version)
            codes[:] = [response.error_code]
            if response.error_code == ErrorCode.NONE and response.producer_id >= 0:
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                self.sequence = 0
            return codes[0] not in AGAIN

        eventually(send, "the transaction does not end")
        return codes[0]
