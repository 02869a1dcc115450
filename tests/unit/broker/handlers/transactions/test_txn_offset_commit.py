"""TxnOffsetCommit as its versions have it."""

import pytest

from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.transactions.txn_offset_commit import TxnOffsetCommitHandler
from ottla.broker.transactions.state import Producer
from ottla.broker.transactions.verification import TransactionVerifier
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tests.doubles.request_context import Asked
from tests.unit.broker.groups.helpers import T0, T1
from tests.unit.broker.groups.helpers import Setup as Groups
from tests.unit.broker.handlers.fake_metadata import Metadata
from tests.unit.broker.transactions.helpers import ID
from tests.unit.broker.transactions.helpers import Setup as Transactions

OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)


async def unreachable(_: int, __: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    raise OSError


class Broker:
    """Both coordinators in one process, and a producer with an open transaction."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.groups.log.verifies = True
        self.transactions = Transactions()
        metadata = Metadata(t=2, **{TRANSACTION_STATE_TOPIC: 1})
        self.handler = TxnOffsetCommitHandler(
            self.groups.coordinator.commits,
            TransactionVerifier(1, metadata, self.transactions.coordinator, unreachable),
            metadata,
            self.groups.coordinator.partition_for,
            self.groups.timer.clock.now_ms,
            GroupRequestErrorLog(self.groups.coordinator.events, self.groups.timer.clock.now_ms),
        )
        self.producer = self.transactions.ongoing(OFFSETS)

    def commit(
        self,
        version: int,
        *indexes: int,
        producer: Producer | None = None,
        topic: str = "t",
        member_id: str = "",
    ) -> dict[TopicPartition, int]:
        rows = [TxnOffsetCommitRequestPartition(index, 5, -1, None) for index in indexes]
        request = TxnOffsetCommitRequest(
            ID,
            "g",
            *(producer or self.producer),
            generation_id=1 if member_id else -1,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(topic, rows)],
        )
        asked = Asked(self.handler.handle, request, version)
        return {
            TopicPartition(found.name, row.partition_index): row.error_code
            for found in asked.response(TxnOffsetCommitResponse).topics
            for row in found.partitions
        }


@pytest.mark.parametrize("version", range(5))
def test_every_version_commits(version: int) -> None:
    broker = Broker()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = broker.commit(version, 0, 1, 9)
    assert response == {T0: 0, T1: 0, TopicPartition("t", 9): unknown}
    assert broker.groups.offset() == -1
    broker.groups.coordinator.on_transaction_completed(
        broker.producer.producer_id, 0, committed=True
    )
    assert broker.groups.offset() == 5


def test_nothing_to_commit() -> None:
    broker = Broker()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.commit(3, 0, topic="nowhere") == {TopicPartition("nowhere", 0): unknown}
    assert broker.commit(3) == {}
    assert broker.groups.log.appends == 0


@pytest.mark.parametrize("version", range(5))
def test_outside_of_a_transaction_nothing_is_committed(version: int) -> None:
    broker = Broker()
    broker.transactions.end(broker.producer)
    response = broker.commit(version, 0)
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert response == {T0: expected}
    assert broker.groups.log.appends == 0


def test_a_fenced_producer_commits_nothing() -> None:
    broker = Broker()
    broker.transactions.init()
    response = broker.commit(3, 0)
    assert response == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_what_was_verified_once_is_not_verified_again() -> None:
    broker = Broker()
    broker.commit(3, 0)
    broker.transactions.coordinator.on_resigned(0, 1)
    assert broker.commit(3, 1) == {T1: ErrorCode.NONE}
    assert broker.commit(3, 1, producer=Producer(9, 9)) == {T1: ErrorCode.NOT_COORDINATOR}


@pytest.mark.parametrize("version", range(5))
def test_old_producers_do_not_know_of_loading(version: int) -> None:
    broker = Broker()
    broker.groups.coordinator.on_elected(0, 1)
    response = broker.commit(version, 0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert response == {T0: loading if version >= 2 else ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_members_are_checked() -> None:
    broker = Broker()
    (member,) = broker.groups.stable_group()
    assert broker.commit(3, 0, member_id=member) == {T0: ErrorCode.NONE}
    assert broker.commit(3, 0, member_id="x") == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
