"""Asking the coordinator, here or elsewhere, before a transaction begins in a partition."""

import pytest

from ottla.broker.runtime.tasks import running_tasks
from ottla.broker.transactions.state import Producer
from ottla.broker.transactions.verification import SendToBroker, TransactionVerifier
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from tests.unit.broker.transactions.helpers import ID, T0, T1, Setup
from tests.unit.broker.transactions.test_marker_writer import Metadata

Errors = dict[TopicPartition, int]
STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


class Remote:
    """Another broker with the coordinator on it."""

    def __init__(self, code: int = 0, errors: Errors | None = None) -> None:
        self.code = code
        self.errors = errors or {}
        self.requests: list[AddPartitionsToTxnRequest] = []

    async def send(
        self, broker_id: int, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        assert broker_id == 2
        self.requests.append(request)
        if self.code == ErrorCode.NETWORK_EXCEPTION:
            raise OSError("connection refused")
        rows = [
            AddPartitionsToTxnTopicResult(topic, [AddPartitionsToTxnPartitionResult(index, error)])
            for (topic, index), error in self.errors.items()
        ]
        return AddPartitionsToTxnResponse(
            error_code=self.code, results_by_transaction=[AddPartitionsToTxnResult(ID, rows)]
        )


def verifier(
    setup: Setup, leader: int | None, send: SendToBroker, *, enabled: bool = True
) -> TransactionVerifier:
    metadata = Metadata({} if leader is None else {STATE: leader})
    return TransactionVerifier(1, metadata, setup.coordinator, send, enabled=enabled)


async def ask(
    asked: TransactionVerifier,
    producer: Producer,
    *partitions: TopicPartition,
    knows_abortable: bool = True,
    adds: bool = False,
) -> Errors:
    responses: list[Errors] = []
    asked.verify(
        ID,
        producer,
        frozenset(partitions),
        responses.append,
        knows_abortable=knows_abortable,
        adds=adds,
    )
    for task in running_tasks():
        await task
    (response,) = responses
    return response


async def test_a_coordinator_in_this_process_verifies_by_a_call() -> None:
    setup = Setup()
    producer = setup.ongoing(T0)
    local = verifier(setup, 1, Remote().send)
    assert await ask(local, producer, T0) == {}
    assert await ask(local, producer, T0, T1) == {T1: ErrorCode.TRANSACTION_ABORTABLE}
    old = await ask(local, producer, T1, knows_abortable=False)
    assert old == {T1: ErrorCode.INVALID_TXN_STATE}
    fenced = Producer(producer.producer_id, producer.epoch - 1)
    assert await ask(local, fenced, T0) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.mark.parametrize("enabled", [True, False])
async def test_partitions_are_added_for_clients_of_version_2(enabled: bool) -> None:
    setup = Setup()
    producer = setup.producer()
    local = verifier(setup, 1, Remote().send, enabled=enabled)
    assert await ask(local, producer, T0, T1, adds=True) == {}
    value = setup.transaction().value
    assert (value.partitions, value.client_version) == ({T0, T1}, 2)
    fenced = Producer(producer.producer_id, producer.epoch - 1)
    assert await ask(local, fenced, T0, adds=True) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}
    remote = Remote(errors={T0: ErrorCode.CONCURRENT_TRANSACTIONS})
    there = verifier(setup, 2, remote.send, enabled=enabled)
    response = await ask(there, producer, T0, adds=True)
    assert response == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert not remote.requests[0].transactions[0].verify_only


async def test_disabled_it_verifies_nothing() -> None:
    setup = Setup()
    assert await ask(verifier(setup, 1, Remote().send, enabled=False), Producer(1, 1), T0) == {}


@pytest.mark.parametrize("leader", [None, 3])
async def test_without_a_coordinator_the_producer_retries(leader: int | None) -> None:
    response = await ask(verifier(Setup(), leader, Remote().send), Producer(1, 1), T0)
    assert response == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_another_coordinator_verifies_over_the_network() -> None:
    remote = Remote(errors={T0: ErrorCode.NONE, T1: ErrorCode.PRODUCER_FENCED})
    response = await ask(verifier(Setup(), 2, remote.send), Producer(7, 3), T0, T1)
    assert response == {T1: ErrorCode.INVALID_PRODUCER_EPOCH}
    (transaction,) = remote.requests[0].transactions
    assert transaction.verify_only
    assert (transaction.producer_id, transaction.producer_epoch) == (7, 3)
    assert {(t.name, i) for t in transaction.topics for i in t.partitions} == {T0, T1}


@pytest.mark.parametrize(
    ("code", "responded"),
    [
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NETWORK_EXCEPTION),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_a_failed_request_verifies_nothing(code: int, responded: int) -> None:
    response = await ask(verifier(Setup(), 2, Remote(code).send), Producer(7, 3), T0)
    assert response == {T0: responded}


async def test_a_partition_missing_from_the_response_is_not_verified() -> None:
    remote = Remote(errors={T0: ErrorCode.NONE})
    response = await ask(verifier(Setup(), 2, remote.send), Producer(7, 3), T0, T1)
    assert response == {T1: ErrorCode.NETWORK_EXCEPTION}
