"""AddPartitionsToTxn (24), versions 0 to 5, and AddOffsetsToTxn (25), versions 0 to 4.

Clients send AddPartitionsToTxn up to version 3, with one transaction; brokers send later versions,
with several transactions, to add partitions or only to verify them (KIP-890).
"""

from collections.abc import Callable

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.handlers.common.transaction_request_errors import (
    PRODUCER_FENCED_SINCE,
    TransactionRequestErrorLog,
    known_error,
)
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.countdown import countdown
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.state import Producer
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
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

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
            len(transactions), lambda: context.respond(_response(version, results))
        )

        def on_result(transactional_id: str, rows: list[AddPartitionsToTxnTopicResult]) -> None:
            results.append((transactional_id, rows))
            completed()

        if not transactions:
            return _response(version, results)
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

        self._coordinator.add_partitions(transactional_id, producer, distinct, on_added)

    # AddOffsetsToTxn.

    def add_offsets_to_txn(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> Deferred:
        """Adds the partition of `__consumer_offsets` that holds the group."""
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


def _response(version: int, results: Results) -> AddPartitionsToTxnResponse:
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
