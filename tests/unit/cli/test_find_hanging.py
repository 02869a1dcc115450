"""`ottla transactions find-hanging` when coordinators do not say which transactions are open."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from ottla.cli.transactions import app
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import describe_producers, describe_transactions, list_transactions
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

PRODUCER_ID = 9


class Leader(NamedTuple):
    node_id: int


class Cluster:
    """Partition t-0 with an old open transaction, which its coordinator knows unless it fails."""

    json = False
    timeout_ms = 1000

    def __init__(self, list_code: int, describe_code: int) -> None:
        self.client = self
        self._list_code, self._describe_code = list_code, describe_code

    def metadata(self, _names: object) -> MetadataResponse:
        rows = [MetadataResponsePartition(partition_index=0)]
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=rows)])

    def leader(self, _partition: object) -> Leader:
        return Leader(1)

    def broker_ids(self) -> list[int]:
        return [1]

    def call(self, kind: type, _request: object, _to: object) -> Any:
        if kind is describe_producers.DescribeProducersResponse:
            producer = describe_producers.ProducerState(PRODUCER_ID, current_txn_start_offset=3)
            rows = [describe_producers.PartitionResponse(0, active_producers=[producer])]
            return kind(topics=[describe_producers.TopicResponse("t", rows)])
        if kind is list_transactions.ListTransactionsResponse:
            states = [list_transactions.TransactionState("payments", PRODUCER_ID, "Ongoing")]
            return kind(
                error_code=self._list_code, transaction_states=[] if self._list_code else states
            )
        assert kind is describe_transactions.DescribeTransactionsResponse
        state = describe_transactions.TransactionState(self._describe_code, "payments")
        if self._describe_code == ErrorCode.NONE:
            state.producer_id = PRODUCER_ID
            state.topics = [describe_transactions.TopicData("t", [0])]
        return kind(transaction_states=[state])

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("codes", "exit_code", "said"),
    [
        ((ErrorCode.NONE, ErrorCode.NONE), 0, "No transaction hangs."),
        ((ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), 1, "1 transaction(s) hang"),
        (
            (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE),
            1,
            "broker 1: COORDINATOR_LOAD_IN_PROGRESS",
        ),
        (
            (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR),
            1,
            "transactional id payments: NOT_COORDINATOR",
        ),
    ],
)
def test_a_coordinator_that_does_not_say_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int], exit_code: int, said: str
) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(*codes))
    done = CliRunner().invoke(app, ["find-hanging"])
    assert (done.exit_code, said in done.output) == (exit_code, True), done.output
