"""A transaction and group coordinator in memory, as far as the Spark connector's sink asks it.

It carries requests out unless `codes` has an error code for the request's class. Ids whose
transaction is open are in `states`; offsets are stored when the transaction commits.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.client.operations import Route, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import add_partitions_to_txn as add_partitions
from ottla.protocol.messages import offset_fetch, txn_offset_commit
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.list_transactions import TransactionState as Listed
from tests.doubles.scripted_client import ScriptedClient

TIMEOUT_MS = 900_000


class ScriptedCoordinator(ScriptedClient):
    """One broker; `now_ms` is its clock."""

    def __init__(self) -> None:
        super().__init__({"t": 2})
        self.codes: dict[type[Message], list[int]] = {}
        self.states: dict[str, TransactionState] = {}
        self.groups: dict[str, tuple[int, str | None]] = {}
        self.now_ms = 1_000_000
        self._pending: dict[str, dict[str, tuple[int, str | None]]] = {}
        for kind, function in (
            (FindCoordinatorRequest, self._find),
            (InitProducerIdRequest, self._init),
            (add_partitions.AddPartitionsToTxnRequest, self._add_partitions),
            (AddOffsetsToTxnRequest, self._add_offsets),
            (txn_offset_commit.TxnOffsetCommitRequest, self._commit_offsets),
            (EndTxnRequest, self._end),
            (DescribeTransactionsRequest, self._describe),
            (ListTransactionsRequest, self._list),
            (offset_fetch.OffsetFetchRequest, self._fetch),
        ):
            self.response(kind, function)

    def call_once(
        self,
        request: Message,
        route: Route | None = None,
        *,
        timeout_ms: int | None = None,
        versions: Versions | None = None,
    ) -> Message:
        return self.send(None, request, timeout_ms=timeout_ms, versions=versions)

    def kinds(self) -> list[str]:
        """The requests so far, by name."""
        return [request.NAME.removesuffix("Request") for _, request in self.sent]

    def _code(self, request: Message) -> int:
        waiting = self.codes.get(type(request), [])
        return waiting.pop(0) if waiting else 0

    def _find(self, request: Any) -> Message:
        code = self._code(request)
        rows = [
            Coordinator(key=key, node_id=1, host="b", port=1, error_code=code)
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=rows)

    def _init(self, request: Any) -> Message:
        code = self._code(request)
        if code:
            return InitProducerIdResponse(error_code=code)
        name = request.transactional_id
        state = self.states.setdefault(
            name, TransactionState(transactional_id=name, producer_id=len(self.states))
        )
        state.producer_epoch += 1
        state.transaction_state = "Empty"
        state.transaction_timeout_ms = request.transaction_timeout_ms
        self._pending.pop(name, None)
        return InitProducerIdResponse(
            producer_id=state.producer_id, producer_epoch=state.producer_epoch
        )

    def _is_fenced(self, request: Any) -> bool:
        state = self.states[request.transactional_id]
        return (state.producer_id, state.producer_epoch) != (
            request.producer_id,
            request.producer_epoch,
        )

    def _open(self, name: str) -> None:
        state = self.states[name]
        if state.transaction_state != "Ongoing":
            state.transaction_state = "Ongoing"
            state.transaction_start_time_ms = self.now_ms

    def _add_partitions(self, request: Any) -> Message:
        code = self._code(request)
        if not code:
            self._open(request.v3_and_below_transactional_id)
        topics = [
            add_partitions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    add_partitions.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return add_partitions.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _add_offsets(self, request: Any) -> Message:
        code = self._code(request)
        if not code and self._is_fenced(request):
            code = ErrorCode.PRODUCER_FENCED
        if not code:
            self._open(request.transactional_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def _commit_offsets(self, request: Any) -> Message:
        row = request.topics[0].partitions[0]
        code = self._code(request)
        if not code:
            pending = self._pending.setdefault(request.transactional_id, {})
            pending[request.group_id] = (row.committed_offset, row.committed_metadata)
        rows = [
            txn_offset_commit.TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
        ]
        topic = txn_offset_commit.TxnOffsetCommitResponseTopic(name="t", partitions=rows)
        return txn_offset_commit.TxnOffsetCommitResponse(topics=[topic])

    def _end(self, request: Any) -> Message:
        code = self._code(request)
        state = self.states[request.transactional_id]
        wanted = "CompleteCommit" if request.committed else "CompleteAbort"
        if not code and self._is_fenced(request):
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        if not code and state.transaction_state not in ("Ongoing", wanted):
            code = ErrorCode.INVALID_TXN_STATE
        if not code:
            state.transaction_state = wanted
            stored = self._pending.pop(request.transactional_id, {})
            if request.committed:
                self.groups.update(stored)
        return EndTxnResponse(error_code=code)

    def _describe(self, request: Any) -> Message:
        code = self._code(request)
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        states = []
        for name in request.transactional_ids:
            state = self.states.get(name)
            if code or state is None:
                state = TransactionState(transactional_id=name, error_code=code or unknown)
            states.append(state)
        return DescribeTransactionsResponse(transaction_states=states)

    def _list(self, request: Any) -> Message:
        rows = [
            Listed(transactional_id=name, transaction_state=state.transaction_state)
            for name, state in self.states.items()
            if state.transaction_state in request.state_filters
        ]
        return ListTransactionsResponse(error_code=self._code(request), transaction_states=rows)

    def _fetch(self, request: Any) -> Message:
        offset, text = self.groups.get(request.group_id, (-1, None))
        row = offset_fetch.OffsetFetchResponsePartition(
            partition_index=0,
            committed_offset=offset,
            metadata=text,
            error_code=self._code(request),
        )
        topic = offset_fetch.OffsetFetchResponseTopic(name="t", partitions=[row])
        return offset_fetch.OffsetFetchResponse(topics=[topic])
