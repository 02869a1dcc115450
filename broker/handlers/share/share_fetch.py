"""ShareFetch (78), versions 1 and 2 (KIP-932): acquires records, and acknowledges others.

Version 2 has the record-limit mode (KIP-1206) and renewals (KIP-1222); those fetch nothing.
READ on the group and on each topic. The acknowledgements are durable when the response is sent; the
records are acquired while they are stored, so what is released is not fetched by the same request
unless there is nothing else.
Partitions with neither records, an error nor an acknowledgement are left out, except in the first
response of a session.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.common.share_acknowledgements import (
    AcknowledgeResults,
    acknowledge,
    acknowledgements_of,
    session_key,
)
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.tasks import spawn
from ottla.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    ShareFetchItem,
    ShareFetchParams,
    ShareFetchResult,
)
from ottla.broker.share.persister import SharePartitionKey
from ottla.broker.share.sessions import (
    INITIAL_EPOCH,
    SessionKey,
    SharedPartition,
    ShareSession,
    end_session,
)
from ottla.broker.share.share_partitions import watch_key
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import LeaderHints
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.quotas.client_quotas import ClientQuota
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.security.authorization.access_control import MayReadShares
    from ottla.broker.share.sessions import ShareSessions
    from ottla.broker.share.share_partitions import SharePartitions

_RECORD_LIMIT = 1  # the acquire mode


class ShareFetchHandler:
    """Resolves the share session, acknowledges, waits for records and builds the response."""

    def __init__(
        self,
        shares: SharePartitions,
        sessions: ShareSessions,
        replica_manager: ReplicaManager,
        metadata: MetadataCache,
        hints: LeaderHints,
        clock: Clock,
        timer: DelayQueue,
        max_bytes: int,
        quota: ClientQuota,
        may_read: MayReadShares,
    ) -> None:
        """`max_bytes` is `fetch.max.bytes`."""
        self._shares = shares
        self._sessions = sessions
        self._replica_manager = replica_manager
        self._metadata = metadata
        self._hints = hints
        self._clock = clock
        self._timer = timer
        self._max_bytes = max_bytes
        self._quota = quota
        self._may_read = may_read

    def handle(
        self, context: RequestContext, request: ShareFetchRequest
    ) -> Deferred | ShareFetchResponse:
        try:
            key = session_key(request)
            acknowledgements = acknowledgements_of(request.topics)
            self._check(request, bool(acknowledgements))
            session = self._sessions.fetch(
                key,
                request.share_session_epoch,
                context.connection,
                _partitions(request),
                [
                    SharedPartition(topic.topic_id, index)
                    for topic in request.forgotten_topics_data
                    for index in topic.partitions
                ],
            )
        except Exception as error:
            response = _failed(error)
            if response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                # The client retries at once: it gets the error after the time that it would wait.
                self._timer.schedule(request.max_wait_ms, lambda: context.respond(response))
                return DEFERRED
            return response
        call = _Call(context, request, key, session)
        if acknowledgements or session is None:
            call.is_acknowledging = True
            # What happens to each record is decided now.
            acknowledged = acknowledge(
                self._shares,
                key,
                acknowledgements,
                self._metadata.snapshot.topic_names,
                self._may_read(context, key.group_id),
                request.is_renew_ack,
            )
            ended = end_session(self._sessions, self._shares, key) if session is None else None
            spawn(self._acknowledge(call, acknowledged, ended), name="ShareFetch")
        self._fetch(call)
        return DEFERRED

    @staticmethod
    def _check(request: ShareFetchRequest, has_acknowledgements: bool) -> None:
        if request.share_session_epoch == INITIAL_EPOCH and has_acknowledgements:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
        if request.is_renew_ack and any(limits):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "maxBytes, minBytes, maxRecords and maxWaitMs must be 0 if isRenewAck is true.",
            )

    async def _acknowledge(
        self,
        call: _Call,
        acknowledged: Coroutine[Any, Any, AcknowledgeResults],
        ended: Coroutine[Any, Any, None] | None,
    ) -> None:
        call.acknowledged = await acknowledged
        if ended is not None:
            await ended
        call.is_acknowledging = False
        self._respond_when_complete(call)

    def _fetch(self, call: _Call) -> None:
        request, session = call.request, call.session
        if session is None or request.is_renew_ack:
            self._fetched(call, [])
            return
        snapshot = self._metadata.snapshot
        may_read = self._may_read(call.context, call.key.group_id)
        items: list[ShareFetchItem] = []
        failed: list[ShareFetchResult] = []
        for where in session.next_round():
            topic = snapshot.topic_names.get(where.topic_id)
            item = ShareFetchItem(SharePartitionKey(call.key.group_id, *where), topic or "")
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif not may_read(topic):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif snapshot.partition(topic, where.partition) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                items.append(item)
                continue
            failed.append(ShareFetchResult(item, code, None, b"", []))
        if not items or request.max_records <= 0 or request.max_bytes <= 0:
            self._fetched(call, failed)
            return
        max_bytes = min(request.max_bytes, self._max_bytes)
        params = ShareFetchParams(
            *call.key,
            request.max_wait_ms,
            min(request.min_bytes, max_bytes),
            max_bytes,
            request.max_records,
            max(1, request.batch_size),
            request.share_acquire_mode == _RECORD_LIMIT,
        )
        operation = DelayedShareFetch(
            params,
            items,
            self._shares,
            self._clock,
            lambda: self._is_awaited(call, session),
            may_read,
            lambda results: self._fetched(call, results + failed),
        )
        keys = [key for item in items for key in (watch_key(item.key), _log_key(item))]
        if params.max_wait_ms <= 0:
            operation.force_complete()
        else:
            self._replica_manager.fetch_purgatory.try_complete_else_watch(operation, keys)

    def _is_awaited(self, call: _Call, session: ShareSession) -> bool:
        """Return whether the member waits for the response.

        Nothing would release records that it acquires after the end of its session.
        """
        is_open = not call.context.connection.closed
        return is_open and self._sessions.is_current(call.key, session)

    def _fetched(self, call: _Call, results: list[ShareFetchResult]) -> None:
        call.results = results
        self._respond_when_complete(call)

    def _respond_when_complete(self, call: _Call) -> None:
        if call.results is not None and not call.is_acknowledging:
            self._respond(call, call.results)

    def _respond(self, call: _Call, results: list[ShareFetchResult]) -> None:
        response = ShareFetchResponse(
            acquisition_lock_timeout_ms=self._shares.settings.limits(
                call.key.group_id
            ).lock_duration_ms
        )
        rows: dict[SharedPartition, PartitionData] = {}
        is_first = call.request.share_session_epoch == INITIAL_EPOCH
        size = 0
        for result in results:
            if not (is_first or result.error_code or result.acquired):
                continue
            row = PartitionData(
                result.item.key.partition,
                error_code=result.error_code,
                error_message=result.error_message,
                records=result.records,
                acquired_records=[AcquiredRecords(*each) for each in result.acquired],
            )
            size += len(result.records)
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._add_leader(call.context, response, result.item.topic, row)
            rows[SharedPartition(*result.item.key[1:])] = row
        for where, acknowledged in call.acknowledged.items():
            row = rows.setdefault(where, PartitionData(where.partition, records=b""))
            row.acknowledge_error_code = acknowledged.error_code
            row.acknowledge_error_message = acknowledged.error_message
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for where, row in rows.items():
            topic = topics.get(where.topic_id)
            if topic is None:
                topic = topics[where.topic_id] = ShareFetchableTopicResponse(where.topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)
        call.context.respond(response, self._throttle_ms(call.context, size))

    def _throttle_ms(self, context: RequestContext, size: int) -> int:
        if not self._quota.table.has_limits or not size:
            return 0
        user, client_id = context.principal.name, context.header.client_id or ""
        return self._quota.record(user, client_id, size, int(monotonic() * 1000))

    def _add_leader(
        self,
        context: RequestContext,
        response: ShareFetchResponse,
        topic: str,
        row: PartitionData,
    ) -> None:
        hint = self._hints.find(context, topic, row.partition_index)
        if hint is None:
            return
        row.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
        node = hint.node
        if node is not None and all(
            each.node_id != node.node_id for each in response.node_endpoints
        ):
            response.node_endpoints.append(NodeEndpoint(*node))


class _Call:
    """One request on its way."""

    __slots__ = (
        "acknowledged",
        "context",
        "is_acknowledging",
        "key",
        "request",
        "results",
        "session",
    )

    def __init__(
        self,
        context: RequestContext,
        request: ShareFetchRequest,
        key: SessionKey,
        session: ShareSession | None,
    ) -> None:
        self.context = context
        self.request = request
        self.key = key
        self.session = session
        self.acknowledged: AcknowledgeResults = {}
        self.is_acknowledging = False
        #: None while the fetch waits for records.
        self.results: list[ShareFetchResult] | None = None


def _partitions(request: ShareFetchRequest) -> Iterable[SharedPartition]:
    return [
        SharedPartition(topic.topic_id, row.partition_index)
        for topic in request.topics
        for row in topic.partitions
    ]


def _log_key(item: ShareFetchItem) -> tuple[str, int]:
    return item.topic, item.key.partition


def _failed(error: Exception) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=error_code(error), error_message=error_message(error))


ROUTES = (ApiRoute(ApiKey.SHARE_FETCH, ShareFetchHandler.handle, check="waiting_share_member"),)
