"""The requests of transactional producers, and the markers that end transactions.

- InitProducerId (22), versions 0 to 5: producer ids and epochs. Version 3 and later may name the
  current producer id and epoch, to bump the epoch (KIP-360).
- AddPartitionsToTxn (24), versions 0 to 5, and AddOffsetsToTxn (25), versions 0 to 4. Clients send
  AddPartitionsToTxn up to version 3, with one transaction. Brokers send later versions, with
  several transactions, to add partitions or only to verify them (KIP-890).
- EndTxn (26), versions 0 to 5: commits or aborts a transaction; version 5 raises the epoch of the
  producer (transaction version 2) and has its producer id and epoch in the response.
- WriteTxnMarkers (27), versions 0 to 2: ends transactions in the partitions led here.
- TxnOffsetCommit (28), versions 0 to 5: commits offsets in a transaction; version 5 adds their
  partition to the transaction first (transaction version 2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.commits import Committer, GroupCommits
from ottla.broker.groups.log.appender import offset_error
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.topic_rows import TopicRows, split_known
from ottla.broker.handlers.common.transaction_request_errors import (
    PRODUCER_FENCED_SINCE,
    TransactionRequestErrorLog,
    known_error,
)
from ottla.broker.handlers.common.transactional_produce import RETRIES, RETRY_MS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import CONTROL, TOPICS, TRANSACTION
from ottla.broker.runtime.countdown import countdown
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.broker.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_2,
    Producer,
)
from ottla.broker.transactions.verification import TransactionVerifier
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.storage.producer.verification import Verification

# The first version of InitProducerId whose clients know PRODUCER_FENCED.
_INIT_FENCED_SINCE = 4


class InitProducerIdHandler:
    """Hands the request to the transaction coordinator."""

    def __init__(
        self, coordinator: TransactionCoordinator, request_errors: TransactionRequestErrorLog
    ) -> None:
        self._coordinator = coordinator
        self._request_errors = request_errors

    def handle(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> Deferred | InitProducerIdResponse:
        version = context.header.api_version
        expected: Producer | None = Producer(request.producer_id, request.producer_epoch)
        if expected == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
            expected = None
        elif request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_PRODUCER_EPOCH:
            return InitProducerIdResponse(
                error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_PRODUCER_EPOCH
            )

        def send_response(error: int, producer: Producer) -> None:
            if error:
                self._request_errors.log(
                    context,
                    "InitProducerId",
                    request.transactional_id,
                    expected or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH),
                    error,
                )
            context.respond(
                InitProducerIdResponse(
                    error_code=known_error(error, version, _INIT_FENCED_SINCE),
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                )
            )

        self._coordinator.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected, send_response
        )
        return DEFERRED


Errors = dict[TopicPartition, int]
# Transactional ids with the rows of their topics.
Results = list[tuple[str, list[AddPartitionsToTxnTopicResult]]]


class AddPartitionsToTxnHandlers:
    """Hands partitions to the transaction coordinator and builds the responses."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        topics: MetadataCache,
        group_partition_for: Callable[[str], int],
        request_errors: TransactionRequestErrorLog,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._group_partition_for = group_partition_for
        self._request_errors = request_errors

    # AddPartitionsToTxn.

    def add_partitions_to_txn(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> Deferred | AddPartitionsToTxnResponse:
        version = context.header.api_version
        if version >= 4:
            transactions = request.transactions
        else:
            transactions = [
                AddPartitionsToTxnTransaction(
                    transactional_id=request.v3_and_below_transactional_id,
                    producer_id=request.v3_and_below_producer_id,
                    producer_epoch=request.v3_and_below_producer_epoch,
                    topics=request.v3_and_below_topics,
                )
            ]
        results: Results = []
        completed = countdown(
            len(transactions), lambda: context.respond(_add_response(version, results))
        )

        def on_result(transactional_id: str, rows: list[AddPartitionsToTxnTopicResult]) -> None:
            results.append((transactional_id, rows))
            completed()

        if not transactions:
            return _add_response(version, results)
        for transaction in transactions:
            self._add_partitions(context, transaction, on_result)
        return DEFERRED

    def _add_partitions(
        self,
        context: RequestContext,
        transaction: AddPartitionsToTxnTransaction,
        on_result: Callable[[str, list[AddPartitionsToTxnTopicResult]], None],
    ) -> None:
        version = context.header.api_version
        transactional_id = transaction.transactional_id
        producer = Producer(transaction.producer_id, transaction.producer_epoch)

        def log_error(error: int) -> None:
            self._request_errors.log(
                context, "AddPartitionsToTxn", transactional_id, producer, error
            )

        snapshot = self._topics.snapshot
        partitions = [
            TopicPartition(topic.name, index)
            for topic in transaction.topics
            for index in topic.partitions
        ]
        unknown = {partition for partition in partitions if snapshot.partition(*partition) is None}
        if unknown:
            # All or nothing: one partition that does not exist fails the request.
            log_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            unknown_or_not_attempted: Errors = {
                partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if partition in unknown
                else ErrorCode.OPERATION_NOT_ATTEMPTED
                for partition in partitions
            }
            on_result(transactional_id, _topic_results(unknown_or_not_attempted))
            return
        distinct = frozenset(partitions)
        if transaction.verify_only:
            errors = self._coordinator.verify_partitions(transactional_id, producer, distinct)
            log_error(next(filter(None, errors.values()), ErrorCode.NONE))
            on_result(transactional_id, _topic_results(errors))
            return

        def on_added(error: int) -> None:
            log_error(error)
            code = known_error(error, version, PRODUCER_FENCED_SINCE)
            # As in Kafka, with a row for each partition of the request, also for one that is there
            # twice.
            rows = [
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions],
                )
                for topic in transaction.topics
            ]
            on_result(transactional_id, rows)

        # Brokers send version 4 and later, for clients of transaction version 2.
        client_version = TRANSACTION_VERSION_2 if version >= 4 else 0
        self._coordinator.add_partitions(
            transactional_id, producer, distinct, on_added, client_version
        )

    # AddOffsetsToTxn.

    def add_offsets_to_txn(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> Deferred:
        """Add the partition of `__consumer_offsets` that holds the group."""
        where = TopicPartition(GROUP_METADATA_TOPIC, self._group_partition_for(request.group_id))
        producer = Producer(request.producer_id, request.producer_epoch)

        def send_response(error: int) -> None:
            code = self._request_errors.logged(
                context, "AddOffsetsToTxn", request.transactional_id, producer, error
            )
            context.respond(AddOffsetsToTxnResponse(error_code=code))

        self._coordinator.add_partitions(
            request.transactional_id, producer, frozenset((where,)), send_response
        )
        return DEFERRED


def _topic_results(errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for partition, error in errors.items():
        topics.setdefault(partition.topic, []).append(
            AddPartitionsToTxnPartitionResult(partition.partition, error)
        )
    return [AddPartitionsToTxnTopicResult(name, rows) for name, rows in topics.items()]


def _add_response(version: int, results: Results) -> AddPartitionsToTxnResponse:
    if version >= 4:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(transactional_id, rows)
                for transactional_id, rows in results
            ]
        )
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[row for _, rows in results for row in rows]
    )


LOADING_KNOWN_SINCE = 2  # producers before that version crash on COORDINATOR_LOAD_IN_PROGRESS
ABORTABLE_KNOWN_SINCE = 4
ADDS_PARTITION_SINCE = 5  # transaction version 2

# The first version of EndTxn of clients of transaction version 2.
_RAISES_EPOCH_SINCE = 5


class TxnOffsetCommitHandler:
    """Verifies the transaction, then hands the offsets to the group coordinator."""

    def __init__(
        self,
        commits: GroupCommits,
        verifier: TransactionVerifier,
        topics: MetadataCache,
        group_partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        timer: DelayQueue,
        request_errors: GroupRequestErrorLog,
        transaction_version: Callable[[], int],
    ) -> None:
        """`transaction_version` returns the finalized level of that feature."""
        self._transaction_version = transaction_version
        self._commits = commits
        self._request_errors = request_errors
        self._verifier = verifier
        self._topics = topics
        self._group_partition_for = group_partition_for
        self._now_ms = now_ms
        self._timer = timer

    def handle(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> Deferred | TxnOffsetCommitResponse:
        version = context.header.api_version
        rows: TopicRows[int] = TopicRows()
        now_ms = self._now_ms()
        known = split_known(
            self._topics,
            (
                (
                    TopicPartition(topic.name, partition.partition_index),
                    CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata or "",
                        now_ms,
                    ),
                )
                for topic in request.topics
                for partition in topic.partitions
            ),
            rows,
        )
        if not known:
            return _commit_response(rows)
        producer = request.producer_id, request.producer_epoch
        committer = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )

        def send_response(results: dict[TopicPartition, int]) -> None:
            for partition, error in results.items():
                self._request_errors.log(
                    context,
                    "TxnOffsetCommit",
                    request.group_id,
                    request.member_id,
                    request.generation_id,
                    error,
                )
                is_loading = error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if is_loading and version < LOADING_KNOWN_SINCE:
                    rows.add(partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                else:
                    rows.add(partition, error)
            context.respond(_commit_response(rows))

        def commit(guard: Verification | None) -> None:
            self._commits.commit_transactional(committer, *producer, known, send_response, guard)

        self._verify(
            request, version, commit, lambda error: send_response(dict.fromkeys(known, error))
        )
        return DEFERRED

    def _verify(
        self,
        request: TxnOffsetCommitRequest,
        version: int,
        on_verified: Callable[[Verification | None], None],
        on_error: Callable[[int], None],
        attempt: int = 0,
    ) -> None:
        """Call back with the guard of the append; None where the transaction is open already.

        A request that adds the partition begins again while the transaction before is being
        completed, as in `TransactionalProduce.verify`.
        """
        group_id, producer = request.group_id, Producer(request.producer_id, request.producer_epoch)
        error = self._commits.check(group_id)
        if error:
            on_error(error)
            return
        guard = self._commits.begin_verification(group_id, *producer)
        adds = version >= ADDS_PARTITION_SINCE
        # As in `TransactionalProduce.begin`; with verification disabled there is no guard, either.
        asks_always = adds and (
            not self._verifier.enabled or self._transaction_version() < TRANSACTION_VERSION_2
        )
        if guard is None and not asks_always:
            on_verified(None)  # verified when the transaction started in the partition
            return

        def verified(errors: dict[TopicPartition, int]) -> None:
            # The marker of the last transaction, of a Kafka 3 that does not raise the epoch, may
            # have come while the coordinator was asked.
            is_lost = guard is not None and not self._commits.is_valid(group_id, guard)
            is_concurrent = is_lost or ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if adds and is_concurrent and attempt < RETRIES:
                self._timer.schedule(
                    RETRY_MS,
                    lambda: self._verify(request, version, on_verified, on_error, attempt + 1),
                )
            elif errors:
                on_error(offset_error(next(iter(errors.values()))))
            else:
                on_verified(guard)

        where = TopicPartition(GROUP_METADATA_TOPIC, self._group_partition_for(group_id))
        self._verifier.verify(
            request.transactional_id,
            producer,
            frozenset((where,)),
            verified,
            knows_abortable=version >= ABORTABLE_KNOWN_SINCE,
            adds=adds,
        )


def _commit_response(rows: TopicRows[int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=error)
                    for index, error in partitions
                ],
            )
            for name, partitions in rows.items()
        ]
    )


class EndTxnHandler:
    """Hands the request to the transaction coordinator."""

    def __init__(
        self, coordinator: TransactionCoordinator, request_errors: TransactionRequestErrorLog
    ) -> None:
        self._coordinator = coordinator
        self._request_errors = request_errors

    def handle(self, context: RequestContext, request: EndTxnRequest) -> Deferred:
        producer = Producer(request.producer_id, request.producer_epoch)

        version = context.header.api_version
        client_version = 0
        if version >= _RAISES_EPOCH_SINCE:
            client_version = TRANSACTION_VERSION_2
            context.connection.raises_epochs = True

        def send_response(error: int, given: Producer) -> None:
            code = self._request_errors.logged(
                context, "EndTxn", request.transactional_id, producer, error
            )
            context.respond(
                EndTxnResponse(
                    error_code=code, producer_id=given.producer_id, producer_epoch=given.epoch
                )
            )

        self._coordinator.end_transaction(
            request.transactional_id, producer, request.committed, send_response, client_version
        )
        return DEFERRED


class WriteTxnMarkersHandler:
    """Hands the markers to the writer, which sends the response."""

    def __init__(self, marker_writer: MarkerWriter) -> None:
        self._marker_writer = marker_writer

    def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> Steps[Deferred]:
        yield from self._marker_writer.write(request, context.respond)
        return DEFERRED


def _init_producer_id_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    response.producer_id = response.producer_epoch = -1


def _add_partitions_to_txn_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    for topic in request.v3_and_below_topics:
        rows = [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
        response.results_by_topic_v3_and_below.append(
            AddPartitionsToTxnTopicResult(topic.name, rows)
        )


def _write_txn_markers_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for marker in request.markers:
        topics = [
            WritableTxnMarkerTopicResult(
                topic.name,
                [
                    WritableTxnMarkerPartitionResult(index, code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        response.markers.append(WritableTxnMarkerResult(marker.producer_id, topics))


def _txn_offset_commit_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [
            TxnOffsetCommitResponsePartition(requested.partition_index, code)
            for requested in topic.partitions
        ]
        response.topics.append(TxnOffsetCommitResponseTopic(topic.name, rows))


ROUTES = (
    ApiRoute(
        ApiKey.INIT_PRODUCER_ID,
        InitProducerIdHandler.handle,
        check="init_producer_id",
        errors=_init_producer_id_errors,
    ),
    ApiRoute(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        AddPartitionsToTxnHandlers.add_partitions_to_txn,
        check="add_partitions_to_txn",
        errors=_add_partitions_to_txn_errors,
        limits=TRANSACTION,
    ),
    ApiRoute(
        ApiKey.ADD_OFFSETS_TO_TXN,
        AddPartitionsToTxnHandlers.add_offsets_to_txn,
        check="add_offsets_to_txn",
    ),
    ApiRoute(
        ApiKey.END_TXN,
        EndTxnHandler.handle,
        check="end_txn",
    ),
    ApiRoute(
        ApiKey.WRITE_TXN_MARKERS,
        WriteTxnMarkersHandler.handle,
        check="write_txn_markers",
        errors=_write_txn_markers_errors,
        limits=CONTROL,
        of_brokers=True,
    ),
    ApiRoute(
        ApiKey.TXN_OFFSET_COMMIT,
        TxnOffsetCommitHandler.handle,
        check="txn_offset_commit",
        errors=_txn_offset_commit_errors,
        items=(TOPICS,),
    ),
)
