"""InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
WriteTxnMarkers (27), DescribeTransactions (65) and ListTransactions (66)."""

from collections.abc import Callable

from ottla.broker.coordination.ports import GROUP_METADATA_TOPIC
from ottla.broker.handlers.topic_rows import Topics
from ottla.broker.handlers.transactions.refusals import TransactionRefusals
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.marker_writer import MarkerWriter
from ottla.broker.transactions.queries import TransactionQueries
from ottla.broker.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
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
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.protocol.topics import TopicPartition

# From these versions on clients know PRODUCER_FENCED; before it is INVALID_PRODUCER_EPOCH.
FENCED_SINCE_INIT = 4
FENCED_SINCE_OTHERS = 2

Errors = dict[TopicPartition, int]


class TransactionHandlers:
    """Evens out the versions of the transaction requests and shapes their answers."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        marker_writer: MarkerWriter,
        queries: TransactionQueries,
        topics: Topics,
        group_partition_for: Callable[[str], int],
        refusals: TransactionRefusals,
    ) -> None:
        self._coordinator = coordinator
        self._marker_writer = marker_writer
        self._queries = queries
        self._topics = topics
        self._group_partition_for = group_partition_for
        self._refusals = refusals

    # InitProducerId.

    def init_producer_id(
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

        def reply(error: int, producer: Producer) -> None:
            if error:
                self._refusals.tell(
                    *(context, "InitProducerId", request.transactional_id),
                    *(expected or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH), error),
                )
            context.respond(
                InitProducerIdResponse(
                    error_code=_known_error(error, version, FENCED_SINCE_INIT),
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                )
            )

        self._coordinator.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected, reply
        )
        return DEFERRED

    # AddPartitionsToTxn.

    def add_partitions_to_txn(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> Deferred | AddPartitionsToTxnResponse:
        """Clients send one transaction, up to version 3; brokers several, to add or verify."""
        version = context.header.api_version
        if version >= 4:
            asked = request.transactions
        else:
            asked = [
                AddPartitionsToTxnTransaction(
                    transactional_id=request.v3_and_below_transactional_id,
                    producer_id=request.v3_and_below_producer_id,
                    producer_epoch=request.v3_and_below_producer_epoch,
                    topics=request.v3_and_below_topics,
                )
            ]
        results: dict[str, list[AddPartitionsToTxnTopicResult]] = {}
        left = len(asked)

        def reply(transactional_id: str, errors: Errors) -> None:
            nonlocal left
            left -= 1
            results[transactional_id] = _topic_results(errors)
            if left == 0:
                context.respond(_add_partitions_response(version, results))

        if not asked:
            return _add_partitions_response(version, results)
        for transaction in asked:
            self._add_partitions(context, transaction, reply)
        return DEFERRED

    def _add_partitions(
        self,
        context: RequestContext,
        asked: AddPartitionsToTxnTransaction,
        reply: Callable[[str, Errors], None],
    ) -> None:
        version = context.header.api_version
        transactional_id = asked.transactional_id
        producer = Producer(asked.producer_id, asked.producer_epoch)

        def refused(error: int) -> None:
            self._refusals.tell(context, "AddPartitionsToTxn", transactional_id, producer, error)

        snapshot = self._topics.snapshot
        partitions = [
            TopicPartition(topic.name, index)
            for topic in asked.topics
            for index in topic.partitions
        ]
        unknown = {partition for partition in partitions if snapshot.partition(*partition) is None}
        if unknown:
            # All or nothing: one partition that does not exist fails the request.
            refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            reply(
                transactional_id,
                {
                    partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if partition in unknown
                    else ErrorCode.OPERATION_NOT_ATTEMPTED
                    for partition in partitions
                },
            )
            return
        wanted = frozenset(partitions)
        if asked.verify_only:
            errors = self._coordinator.verify_partitions(transactional_id, producer, wanted)
            refused(next(filter(None, errors.values()), ErrorCode.NONE))
            reply(transactional_id, errors)
            return

        def added(error: int) -> None:
            refused(error)
            known = _known_error(error, version, FENCED_SINCE_OTHERS)
            reply(transactional_id, dict.fromkeys(partitions, known))

        self._coordinator.add_partitions(transactional_id, producer, wanted, added)

    # AddOffsetsToTxn, EndTxn.

    def add_offsets_to_txn(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> Deferred:
        """A group's offsets will be part of the transaction: its partition takes part."""
        where = TopicPartition(GROUP_METADATA_TOPIC, self._group_partition_for(request.group_id))
        producer = Producer(request.producer_id, request.producer_epoch)

        def reply(error: int) -> None:
            code = self._refused(
                context, "AddOffsetsToTxn", request.transactional_id, producer, error
            )
            context.respond(AddOffsetsToTxnResponse(error_code=code))

        self._coordinator.add_partitions(
            request.transactional_id, producer, frozenset((where,)), reply
        )
        return DEFERRED

    def end_txn(self, context: RequestContext, request: EndTxnRequest) -> Deferred:
        producer = Producer(request.producer_id, request.producer_epoch)

        def reply(error: int) -> None:
            code = self._refused(context, "EndTxn", request.transactional_id, producer, error)
            context.respond(EndTxnResponse(error_code=code))

        self._coordinator.end_transaction(
            request.transactional_id, producer, request.committed, reply
        )
        return DEFERRED

    def _refused(
        self,
        context: RequestContext,
        request: str,
        transactional_id: str,
        producer: Producer,
        error: int,
    ) -> int:
        """Says so, if it is an error; gives the code that this version of the request knows."""
        self._refusals.tell(context, request, transactional_id, producer, error)
        return _known_error(error, context.header.api_version, FENCED_SINCE_OTHERS)

    def write_txn_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> Deferred:
        self._marker_writer.write(request, context.respond)
        return DEFERRED

    # Looking.

    def describe_transactions(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[
                self._queries.describe(transactional_id)
                for transactional_id in request.transactional_ids
            ]
        )

    def list_transactions(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        return self._queries.list_transactions(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
        )


def _known_error(error: int, version: int, fenced_since: int) -> int:
    if error == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _topic_results(errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for partition, error in errors.items():
        topics.setdefault(partition.topic, []).append(
            AddPartitionsToTxnPartitionResult(partition.partition, error)
        )
    return [AddPartitionsToTxnTopicResult(name, rows) for name, rows in topics.items()]


def _add_partitions_response(
    version: int, results: dict[str, list[AddPartitionsToTxnTopicResult]]
) -> AddPartitionsToTxnResponse:
    if version >= 4:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(transactional_id, rows)
                for transactional_id, rows in results.items()
            ]
        )
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[row for rows in results.values() for row in rows]
    )
