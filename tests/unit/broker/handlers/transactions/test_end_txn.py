"""EndTxn in every version, after AddOffsetsToTxn."""

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition
from tests.doubles.request_context import Asked
from tests.unit.broker.handlers.transactions.broker import Broker
from tests.unit.broker.transactions.helpers import ID


@pytest.mark.parametrize("version", range(5))
def test_offsets_and_the_end(version: int) -> None:
    broker = Broker()
    producer = broker.setup.producer()
    request: Message = AddOffsetsToTxnRequest(ID, *producer, "g")
    asked = Asked(broker.add_partitions_to_txn.add_offsets_to_txn, request, version)
    assert asked.response(AddOffsetsToTxnResponse).error_code == ErrorCode.NONE
    assert broker.setup.transaction().value.partitions == {TopicPartition(GROUP_METADATA_TOPIC, 3)}
    known = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    for epoch, error in ((9, known), (0, ErrorCode.NONE)):
        request = EndTxnRequest(ID, producer.producer_id, epoch, True)
        asked = Asked(broker.end_txn.handle, request, version)
        assert asked.response(EndTxnResponse).error_code == error
    request = AddOffsetsToTxnRequest(ID, producer.producer_id, 9, "g")
    asked = Asked(broker.add_partitions_to_txn.add_offsets_to_txn, request, version)
    assert asked.response(AddOffsetsToTxnResponse).error_code == known


def test_failed_requests_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.transactions")
    broker = Broker()
    request = EndTxnRequest("unknown", 77, 3, True)
    for _ in range(3):  # logged once
        assert Asked(broker.end_txn.handle, request, 3).response(EndTxnResponse).error_code == (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
    failures = [line for line in caplog.messages if "failed" in line]
    assert failures == [
        "EndTxn request of TransactionalId 'unknown' with producer id 77 and epoch 3 (client "
        "'client' at /127.0.0.1) failed with INVALID_PRODUCER_ID_MAPPING: the transactional id is "
        "unknown, or has another producer id"
    ]
