"""The requests about transactions: those of tasks, those of the driver, and the stored decisions.

Codes that another attempt may change are retried until `kafka.default.api.timeout.ms`; the others
become ConnectorErrors, except where a function returns them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ottla.protocol.client.errors import ClientError, UnsupportedApiError
from ottla.protocol.client.operations import (
    ANY_VERSION,
    TRANSACTION,
    CoordinatorOf,
    Route,
    Versions,
)
from ottla.protocol.errors import RETRIABLE, ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.write.decisions import (
    Chunk,
    Decision,
    Prepared,
    Target,
    belongs_to,
    chunk_groups,
    decode_decision,
    parse_chunk,
)
from pyspark_ottla.write.transaction_coordinators import find_coordinators

T = TypeVar("T", bound=Message)

INIT_PRODUCER_ID_VERSIONS = Versions(0, 5)
# Version 4 of AddPartitionsToTxn is for brokers among themselves.
ADD_PARTITIONS_VERSIONS = Versions(0, 3)
# The first one with stable offsets (KIP-447), and the last one for one group.
STABLE_FETCH_VERSIONS = Versions(7, 7)
# Those before transaction version 2 (KIP-890): with it the epoch rises when a transaction ends, and
# a driver that repeats a decision, or a task, would need the one that the other was given.
END_VERSIONS = Versions(0, 4)
COMMIT_OFFSETS_VERSIONS = Versions(0, 4)
OPEN = "Ongoing"

FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)


class FencedError(ConnectorError):
    """The coordinator has ended the transaction, or given the transactional id to another one."""


class ForgottenError(FencedError):
    """The coordinator does not know the transactional id any more (transactional.id.expiration.ms),
    so that it cannot tell how the transaction ended."""


class Transactions:
    """Transactional requests of one thread; `timeout_ms` is that of transactions it begins, which
    are those of tasks or of the driver."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int, *, of_driver: bool = False) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._of_driver = of_driver

    # --- one transaction -------------------------------------------------------------------------

    def begin(self, transactional_id: str) -> Prepared:
        """A producer for this id: aborts a transaction that is open, and fences its producer."""
        what = f"Starting a transaction ({transactional_id})"
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=self._timeout_ms
        )
        route = CoordinatorOf(transactional_id, TRANSACTION)
        response = self._call(
            what, request, route, InitProducerIdResponse, INIT_PRODUCER_ID_VERSIONS
        )
        if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"The brokers allow no transaction of {self._timeout_ms} ms, "
                "the value of kafka.transaction.timeout.ms",
                "Raise the brokers' transaction.max.timeout.ms, or set kafka.transaction.timeout.ms"
                " to what it is; all tasks of a batch must end within this time",
            )
        self._check(what, response.error_code)
        return Prepared(transactional_id, response.producer_id, response.producer_epoch)

    def add_partitions(self, producer: Prepared, partitions: Iterable[TopicPartition]) -> None:
        """Makes the partitions part of the transaction, before anything is written to them."""
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for tp in partitions:
            topic = topics.setdefault(tp.topic, AddPartitionsToTxnTopic(name=tp.topic))
            topic.partitions.append(tp.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def codes(response: AddPartitionsToTxnResponse) -> list[int]:
            return [
                row.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ]

        self._call_until_done(
            f"Adding partitions to the transaction {producer.transactional_id}",
            request,
            CoordinatorOf(producer.transactional_id, TRANSACTION),
            AddPartitionsToTxnResponse,
            codes,
            ADD_PARTITIONS_VERSIONS,
        )

    def end(self, producer: Prepared, *, committed: bool) -> None:
        """Ends it; can be repeated. Raises FencedError for one that was ended the other way.

        It is durable when this returns, and visible to read_committed readers soon after.
        """
        what = "Committing" if committed else "Aborting"
        what = f"{what} the transaction {producer.transactional_id}"
        request = EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=committed,
        )
        route = CoordinatorOf(producer.transactional_id, TRANSACTION)
        response = self._call(what, request, route, EndTxnResponse, END_VERSIONS)
        self._check(what, response.error_code)

    # --- many transactions -----------------------------------------------------------------------

    def find_coordinators(self, transactional_ids: Sequence[str]) -> None:
        """Looks up all coordinators that are not known, in few requests."""
        self._cluster.reach()
        find_coordinators(self._cluster, transactional_ids)

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionState] | None:
        """The state of each; None if brokers cannot tell (before Kafka 3.0)."""
        deadline = self._deadline()
        found: dict[str, TransactionState] = {}
        left = list(transactional_ids)
        while True:
            self.find_coordinators(left)
            by_node: dict[int, list[str]] = {}
            for identifier in left:
                node = self._cluster.client.state.coordinator(identifier, TRANSACTION)
                by_node.setdefault(-1 if node is None else node, []).append(identifier)
            code: int = ErrorCode.COORDINATOR_NOT_AVAILABLE
            for some in by_node.values():
                states = self._describe(some, deadline)
                if states is None:
                    return None
                for state in states:
                    if state.error_code in RETRIABLE:
                        code = state.error_code
                        self._cluster.client.state.forget_coordinator(
                            state.transactional_id, TRANSACTION
                        )
                    else:
                        found[state.transactional_id] = state
            left = [identifier for identifier in left if identifier not in found]
            if not left:
                return found
            if not self._cluster.wait(deadline):
                raise refused(f"Asking for the state of {left[0]}", code)

    def _describe(self, some: list[str], deadline: float) -> list[TransactionState] | None:
        """From the coordinator of the first one; the others have the same."""
        request = DescribeTransactionsRequest(transactional_ids=some)
        route = CoordinatorOf(some[0], TRANSACTION)

        def call(timeout_ms: int) -> Message | None:
            try:
                return self._cluster.client.call_once(request, route, timeout_ms=timeout_ms)
            except UnsupportedApiError:
                return None
            except (ClientError, KafkaError):
                # The coordinator may have died since it was looked up; there is another one then.
                for identifier in some:
                    self._cluster.client.state.forget_coordinator(identifier, TRANSACTION)
                raise

        response = self._cluster.call_with_retries("Describing transactions", call, deadline)
        if response is None:
            return None
        assert isinstance(response, DescribeTransactionsResponse)
        return list(response.transaction_states)

    def open_ids(self, name: str) -> list[str]:
        """The ids of tasks of that write which have an open transaction, of all coordinators.

        Empty if brokers cannot tell (before Kafka 3.0).
        """
        deadline = self._deadline()
        found: list[str] = []
        brokers = self._cluster.metadata([], deadline).brokers
        for node_id in sorted(broker.node_id for broker in brokers):
            response = self._list_open(node_id, deadline)
            found += [
                row.transactional_id
                for row in response.transaction_states
                if belongs_to(name, row.transactional_id)
            ]
        return found

    def _list_open(self, node_id: int, deadline: float) -> ListTransactionsResponse:
        what = "Listing open transactions"
        request = ListTransactionsRequest(state_filters=[OPEN], producer_id_filters=[])

        def call(timeout_ms: int) -> Message:
            try:
                return self._cluster.client.send(
                    node_id, request, timeout_ms=timeout_ms, versions=Versions(0, 0)
                )
            except UnsupportedApiError:
                return ListTransactionsResponse()

        response = self._cluster.call_with_retries(what, call, deadline)
        assert isinstance(response, ListTransactionsResponse)
        if response.error_code != ErrorCode.NONE:
            raise refused(what, response.error_code)
        return response

    # --- decisions -------------------------------------------------------------------------------

    def decision(self, name: str, *, is_fenced: bool) -> Decision | None:
        """The last decision of that write.

        The driver, which has fenced all others (`is_fenced`), waits for one that is being stored.
        A task does not: the driver of the decision may be dead. It can get the one before.
        """
        deadline = self._deadline()
        while True:
            found, whole = self._read_decision(name, is_fenced)
            if whole:
                return found
            if not self._cluster.wait(deadline):
                raise ConnectorError(
                    errors.WRITE_FAILED,
                    f"The groups {name} and {name}.1 and so on do not hold a whole decision",
                    "Delete none of them, or all of them",
                )

    def _read_decision(self, name: str, is_stable: bool) -> tuple[Decision | None, bool]:
        """The decision, and whether its chunks are there and of the same decision."""
        offset, first, topic = self._stored(name, is_stable)
        if first is None:
            return None, True
        chunks = [first]
        for group in chunk_groups(name, first.total)[1:]:
            other, chunk, _ = self._stored(group, is_stable)
            if chunk is None or other != offset or chunk.job != first.job:
                return None, False
            chunks.append(chunk)
        decision = decode_decision(name, offset - 1, chunks)
        if decision is not None and decision.target is None:  # of an earlier version
            decision = decision._replace(target=Target("", topic, ""))
        return decision, decision is not None

    def _stored(self, group: str, is_stable: bool) -> tuple[int, Chunk | None, str]:
        """The highest offset of the group, the chunk with it, and the topic that it is for."""
        what = f"Reading the decision in the group {group}"
        request = OffsetFetchRequest(group_id=group, topics=None, require_stable=is_stable)

        def codes(response: OffsetFetchResponse) -> list[int]:
            rows = [row.error_code for topic in response.topics for row in topic.partitions]
            return [response.error_code, *rows]

        response = self._call_until_done(
            what, request, CoordinatorOf(group), OffsetFetchResponse, codes, STABLE_FETCH_VERSIONS
        )
        found: tuple[int, Chunk | None, str] = (-1, None, "")
        for topic in response.topics:
            for row in topic.partitions:
                chunk = parse_chunk(row.metadata or "")
                if chunk is not None and row.committed_offset > found[0]:
                    found = (row.committed_offset, chunk, topic.name)
        return found

    def store(
        self, producer: Prepared, place: TopicPartition, offset: int, texts: Mapping[str, str]
    ) -> None:
        """Commits that offset of `place` with a text for each group, within the transaction."""
        for group, text in texts.items():
            what = f"Storing a decision in the group {group}"
            add = AddOffsetsToTxnRequest(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=group,
            )
            route = CoordinatorOf(producer.transactional_id, TRANSACTION)
            self._check(what, self._call(what, add, route, AddOffsetsToTxnResponse).error_code)
            row = TxnOffsetCommitRequestPartition(
                partition_index=place.partition, committed_offset=offset, committed_metadata=text
            )
            commit = TxnOffsetCommitRequest(
                transactional_id=producer.transactional_id,
                group_id=group,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[TxnOffsetCommitRequestTopic(name=place.topic, partitions=[row])],
            )
            self._call_until_done(
                what,
                commit,
                CoordinatorOf(group),
                TxnOffsetCommitResponse,
                lambda response: [r.error_code for t in response.topics for r in t.partitions],
                COMMIT_OFFSETS_VERSIONS,
            )

    # --- calls to the coordinator ----------------------------------------------------------------

    def _deadline(self) -> float:
        """Of a cluster that was reached: what takes long is not the first contact."""
        self._cluster.reach()
        return self._cluster.deadline()

    def _call(
        self,
        what: str,
        request: Message,
        route: Route,
        kind: type[T],
        versions: Versions = ANY_VERSION,
        deadline: float | None = None,
    ) -> T:
        """The coordinator's response; retried while the coordinator moves or loads."""
        until = self._deadline() if deadline is None else deadline

        def call(_: int) -> Message:
            # Not the time of one request: `call` repeats it as long as the code is retriable.
            left_ms = max(1, int((until - time.monotonic()) * 1000))
            return self._cluster.client.call(request, route, timeout_ms=left_ms, versions=versions)

        response = self._cluster.call_with_retries(what, call, until)
        assert isinstance(response, kind)
        return response

    def _call_until_done(
        self,
        what: str,
        request: Message,
        route: Route,
        kind: type[T],
        codes: Callable[[T], list[int]],
        versions: Versions = ANY_VERSION,
    ) -> T:
        """As `_call`, for responses with an error code for each partition."""
        deadline = self._deadline()
        while True:
            response = self._call(what, request, route, kind, versions, deadline)
            failed = [
                code
                for code in codes(response)
                if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
            ]
            if not failed:
                return response
            final = [code for code in failed if code not in RETRIABLE]
            if final or not self._cluster.wait(deadline):
                self._check(what, (final or failed)[0])

    def _check(self, what: str, code: int) -> None:
        if code in FENCED:
            is_forgotten = code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
            why = (
                "it was open for longer than kafka.transaction.timeout.ms "
                f"({self._timeout_ms} ms), or another attempt of this batch has taken over",
                "Harmless if Spark runs a task or a batch again; else raise the timeout",
            )
            if self._of_driver:
                why = (
                    f"the decision took longer than {self._timeout_ms} ms, or another driver has "
                    "taken over",
                    "Harmless if Spark executes the batch again; else look for another query or "
                    "job with the same checkpoint or writeId",
                )
            raise (ForgottenError if is_forgotten else FencedError)(
                errors.WRITE_FAILED, f"{what} failed ({KafkaError(code).name}): {why[0]}", why[1]
            )
        if code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
            raise ConnectorError(
                errors.WRITE_FAILED,
                f"{what} failed: the brokers' offset.metadata.max.bytes is below its default",
                "Set it to 4096",
            )
        if code != ErrorCode.NONE:
            raise refused(what, code)
