"""The handlers of transaction requests with a coordinator in memory."""

from ottla.broker.handlers.common.transaction_request_errors import TransactionRequestErrorLog
from ottla.broker.handlers.transactions.transactions import (
    AddPartitionsToTxnHandlers,
    EndTxnHandler,
    InitProducerIdHandler,
)
from ottla.broker.transactions.state import Producer
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.fake_metadata import Metadata
from tests.unit.broker.transactions.helpers import ID, TIMEOUT_MS, Setup


class Broker:
    def __init__(self) -> None:
        self.setup = Setup()
        coordinator = self.setup.coordinator
        request_errors = TransactionRequestErrorLog(self.setup.timer.clock.now_ms)
        self.init_producer_id = InitProducerIdHandler(coordinator, request_errors)
        self.add_partitions_to_txn = AddPartitionsToTxnHandlers(
            coordinator, Metadata(t=2, u=1), lambda group_id: 3, request_errors
        )
        self.end_txn = EndTxnHandler(coordinator, request_errors)

    def init(
        self, version: int, transactional_id: str | None = ID, producer: Producer | None = None
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id, TIMEOUT_MS, *(producer or (-1, -1)))
        asked = Asked(self.init_producer_id.handle, request, version)
        return asked.response(InitProducerIdResponse)

    def add(self, version: int, producer: Producer, **topics: list[int]) -> dict[str, list[int]]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name, found) for name, found in topics.items()
            ],
        )
        asked = Asked(self.add_partitions_to_txn.add_partitions_to_txn, request, version)
        return {
            topic.name: [row.partition_error_code for row in topic.results_by_partition]
            for topic in asked.response(AddPartitionsToTxnResponse).results_by_topic_v3_and_below
        }
