"""Produce (0), versions 0 to 12: appends record batches to the partitions led here.

Versions: 1 throttle time; 2 the append time in the response; 3 transactional id, and from then on
exactly one batch of magic 2 for each partition; 5 log start offset; 7 zstd; 8 errors of single
records; 9 flexible; 10 the current leader in responses of other brokers (KIP-951); 11 the errors of
KIP-890; 12 adds the partitions to the transaction (transaction version 2).

acks=0: no response; after an error the connection is closed. acks=1: acknowledged when the leader
has appended the records. acks=-1: acknowledged when they are committed.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from ottla.broker.cluster.endpoints import LeaderHints
from ottla.broker.handlers.common.respond_later import respond_later
from ottla.broker.handlers.common.transactional_produce import ADDS_PARTITIONS_SINCE
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import PRODUCE
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.message import RecordsBuffer
from ottla.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.handlers.common.transactional_produce import Guards, TransactionalProduce
    from ottla.broker.quotas.client_quotas import ClientQuota
    from ottla.broker.replication.deferred_validation import ProduceEntry
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.protocol.steps import Steps

# Kafka lets its own tools write to internal topics when they give this client id.
_ADMIN_CLIENT_ID = "__admin_client"

_ACKS = frozenset((-1, 0, 1))

_MAGIC_OFFSET = 16
_ATTRIBUTES_OFFSET = 22
_BATCH_OVERHEAD = 61
_LENGTH_END = 12
# Of a message of magic 0, the shortest there is.
_LEAST_LENGTH = 14
_CODEC_MASK = 7
_TRANSACTIONAL_MASK = 0x10
_ZSTD = 4
_LEADER_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


class ProduceHandler:
    """Validates a request, hands it to the replica manager, builds the response.

    Of a partition that is in a request twice, the last records are appended, as in Kafka.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        hints: LeaderHints,
        transactional: TransactionalProduce,
        quota: ClientQuota,
    ) -> None:
        self._replica_manager = replica_manager
        self._hints = hints
        self._transactional = transactional
        self._quota = quota

    def handle(
        self, context: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Deferred | Steps[ProduceResponse | Deferred | None] | None:
        """Most requests have one partition: those are handled at once."""
        topics = request.topic_data
        if (
            request.transactional_id is not None
            or len(topics) != 1
            or len(topics[0].partition_data) != 1
        ):
            return self._handle_many(context, request)
        acks = request.acks
        topic = topics[0]
        data = topic.partition_data[0]
        row = PartitionProduceResponse(
            data.index, self._topic_error(context, acks, topic.name), -1, -1, -1
        )
        response = ProduceResponse([TopicProduceResponse(topic.name, [row])])
        if not row.error_code:
            records = _valid_records(row, data.records, context.header.api_version, False)
            if records is not None and not self._replica_manager.append_one(
                acks,
                request.timeout_ms,
                (topic.name, data.index, records, row),
                lambda: respond_later(context, self._response(context, acks, response)),
            ):
                return DEFERRED
        if row.error_code or not acks or self._quota.table.has_limits:
            return self._response(context, acks, response)
        return response

    def _topic_error(self, context: RequestContext, acks: int, name: str) -> int:
        """The error of all partitions of a topic."""
        if acks not in _ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS
        if name in INTERNAL_TOPICS and context.header.client_id != _ADMIN_CLIENT_ID:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.NONE

    def _handle_many(
        self, context: RequestContext, request: ProduceRequest
    ) -> Steps[ProduceResponse | Deferred | None]:
        """May pause between two partitions, whether it validates or appends their records."""
        version = context.header.api_version
        is_transactional = request.transactional_id is not None
        response = ProduceResponse()
        topics: dict[str, list[PartitionProduceResponse]] = {}
        rows: dict[tuple[str, int], PartitionProduceResponse] = {}
        found: dict[tuple[str, int], memoryview] = {}
        for topic in request.topic_data:
            name = topic.name
            if not topic.partition_data:
                continue  # Not in Kafka's response either.
            if name not in topics:
                topics[name] = []
                response.responses.append(TopicProduceResponse(name, topics[name]))
            topic_error = self._topic_error(context, request.acks, name)
            for data in topic.partition_data:
                if rows:
                    yield
                key = (name, data.index)
                row = rows.get(key)
                if row is None:
                    row = rows[key] = PartitionProduceResponse(data.index, topic_error, -1, -1, -1)
                    topics[name].append(row)
                if not topic_error:
                    records = _valid_records(row, data.records, version, is_transactional)
                    if records is not None:
                        found[key] = records
        entries: list[ProduceEntry] = []
        for (name, index), records in found.items():
            row = rows[name, index]
            if row.error_code:
                # The partition is there twice, once with invalid records: their error is the
                # response, as in Kafka.
                row = PartitionProduceResponse(index, 0, -1, -1, -1)
            entries.append((name, index, records, row))
        if is_transactional:
            return (yield from self._append_verified(context, request, entries, response))
        return (yield from self._append(context, request, entries, response))

    def _append_verified(
        self,
        context: RequestContext,
        request: ProduceRequest,
        entries: list[ProduceEntry],
        response: ProduceResponse,
        attempt: int = 0,
    ) -> Steps[ProduceResponse | Deferred | None]:
        """Append when the coordinator has verified that the transaction has the partitions."""
        version = context.header.api_version
        if version >= ADDS_PARTITIONS_SINCE:
            # Its EndTxn may go to another broker, which may be the one that is replaced.
            context.connection.raises_epochs = True
        begun = yield from self._transactional.begin(entries, version)
        if begun.producer is None:
            return (yield from self._append(context, request, entries, response))

        def verified(entries: list[ProduceEntry]) -> None:
            respond_later(context, self._append(context, request, entries, response, begun.guards))

        def again() -> None:
            steps = self._append_verified(context, request, entries, response, attempt + 1)
            respond_later(context, steps)

        assert request.transactional_id is not None
        self._transactional.verify(
            request.transactional_id, version, begun, entries, verified, again, attempt
        )
        return DEFERRED

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        entries: list[ProduceEntry],
        response: ProduceResponse,
        guards: Guards | None = None,
    ) -> Steps[ProduceResponse | Deferred | None]:
        is_done = yield from self._replica_manager.append(
            request.acks,
            request.timeout_ms,
            entries,
            lambda: respond_later(context, self._response(context, request.acks, response)),
            guards=guards,
        )
        if not is_done:
            return DEFERRED
        return (yield from self._response(context, request.acks, response))

    def _response(
        self, context: RequestContext, acks: int, response: ProduceResponse
    ) -> Steps[ProduceResponse | Deferred | None]:
        failed, knows_leaders = ErrorCode.NONE, context.header.api_version >= 10
        for topic in response.responses:
            for number, row in enumerate(topic.partition_responses):
                if number:
                    yield
                if row.error_code:
                    failed = row.error_code
                    if failed in _LEADER_ERRORS and knows_leaders:
                        self._add_hint(context, response, topic.name, row)
        if self._quota.table.has_limits:
            context.throttle_time_ms = self._quota.record(
                context.principal.name,
                context.header.client_id or "",
                context.frame_bytes,
                int(monotonic() * 1000),
            )
        if acks:
            return response
        if failed:
            context.close(f"a produce request with acks=0 failed with {error_name(failed)}")
            return DEFERRED
        return None

    def _add_hint(
        self,
        context: RequestContext,
        produce_response: ProduceResponse,
        topic: str,
        response: PartitionProduceResponse,
    ) -> None:
        hint = self._hints.find(context, topic, response.index)
        if hint is None:
            return
        response.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
        node = hint.node
        if node is not None and all(
            known.node_id != node.node_id for known in produce_response.node_endpoints
        ):
            produce_response.node_endpoints.append(NodeEndpoint(*node))


def _reject(row: PartitionProduceResponse, code: int, message: str) -> None:
    row.error_code = code
    row.error_message = message


def _valid_records(
    row: PartitionProduceResponse,
    buffer: RecordsBuffer | None,
    version: int,
    is_transactional: bool,
) -> memoryview | None:
    """Return the records of a partition, or None with the error in its row.

    Checks what depends on the request; the log validates the rest. As Kafka, leaves out a batch
    that is cut off behind a whole one. Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED, for the whole
    request as in Kafka, for a transactional batch without a transactional id: nothing would end
    its transaction, and readers of committed records would wait for it.
    """
    if not buffer:
        _reject(row, ErrorCode.INVALID_RECORD, "The partition has no records.")
        return None
    # The network layer decodes records as a view of a writable frame.
    records = cast("memoryview", buffer)
    size = len(records)
    if (
        not is_transactional
        and size >= _BATCH_OVERHEAD
        and records[_ATTRIBUTES_OFFSET] & _TRANSACTIONAL_MASK
        and records[_MAGIC_OFFSET] == 2
    ):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if version < 3:
        return records  # Message sets of magic 0 and 1: the log converts them.
    if (
        size < _BATCH_OVERHEAD
        or records[_MAGIC_OFFSET] != 2
        or int.from_bytes(records[8:_LENGTH_END], "big") != size - _LENGTH_END
    ):
        problem = _problem(records, version)
        if problem is not None:
            _reject(row, *problem)
            return None
        records = records[: _LENGTH_END + int.from_bytes(records[8:_LENGTH_END], "big")]
    if version < 7 and records[_ATTRIBUTES_OFFSET] & _CODEC_MASK == _ZSTD:
        _reject(
            row,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
        return None
    return records


def _problem(records: memoryview, version: int) -> tuple[int, str] | None:
    """Why bytes do not begin with one record batch of magic 2, or have another one behind it, and
    Kafka's error code for it."""
    what = f"Produce requests with version {version} must hold "
    not_one = ErrorCode.INVALID_RECORD, f"{what}a record batch of magic 2"
    size = len(records)
    if size < _LENGTH_END:
        return not_one
    length = int.from_bytes(records[8:_LENGTH_END], "big", signed=True)
    if length < _LEAST_LENGTH:
        return ErrorCode.CORRUPT_MESSAGE, f"A record batch with a length of {length} bytes."
    if size > _MAGIC_OFFSET and records[_MAGIC_OFFSET] > 2:
        magic = records[_MAGIC_OFFSET]
        return ErrorCode.CORRUPT_MESSAGE, f"Unknown magic {magic} of a record batch."
    if size < _BATCH_OVERHEAD or records[_MAGIC_OFFSET] != 2 or length > size - _LENGTH_END:
        return not_one
    rest = records[_LENGTH_END + length :]
    if len(rest) < _LENGTH_END:
        return None
    length = int.from_bytes(rest[8:_LENGTH_END], "big", signed=True)
    if length < _LEAST_LENGTH or (len(rest) > _MAGIC_OFFSET and rest[_MAGIC_OFFSET] > 2):
        return ErrorCode.CORRUPT_MESSAGE, f"{len(rest)} bytes follow a record batch."
    if len(rest) > _MAGIC_OFFSET and length <= len(rest) - _LENGTH_END:
        return ErrorCode.INVALID_RECORD, f"{what}exactly one record batch"
    return None


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topic_data:
        rows = [
            PartitionProduceResponse(data.index, code, -1, -1, -1, error_message=message)
            for data in topic.partition_data
        ]
        response.responses.append(TopicProduceResponse(topic.name, rows))


ROUTES = (
    ApiRoute(
        ApiKey.PRODUCE,
        ProduceHandler.handle,
        check="produce",
        errors=_error_rows,
        limits=PRODUCE,
    ),
)
