"""Fetch (1), versions 0 to 17: reads record batches, for consumers and for followers.

Versions: 0-2 may truncate the last batch; 3 a limit for the whole response, and the first batch
whole even above it (KIP-74); 4 isolation levels and magic 2, below it down-conversion; 5 log start
offset; 7 fetch sessions (KIP-227); 9 leader epochs; 10 zstd; 11 reading from followers
(KIP-392); 12 flexible, diverging epochs; 13 topic ids instead of names; 15 the replica's epoch; 16
the endpoints of new leaders (KIP-951); 17 directory ids of replicas.

A partition without new records has empty records in the response, never null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.endpoints import LeaderHints
from ottla.broker.handlers.common.respond_later import respond_later
from ottla.broker.replication.delayed_fetch import FetchParams
from ottla.broker.replication.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchItem,
    FetchResult,
    FetchSessions,
)
from ottla.broker.replication.partition import READ_COMMITTED, READ_LOG_END, READ_UNCOMMITTED
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import FETCH
from ottla.broker.security.authorization.access_control import may_read_all
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, TopicMetadata
    from ottla.broker.handlers.common.down_conversion import DownConversion
    from ottla.broker.quotas.client_quotas import ClientQuotas
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.security.authorization.access_control import MayRead
    from ottla.protocol.steps import Steps

# Of a response without topics, and of a partition without records with its share of the topic.
_RESPONSE_BYTES = 16
_PARTITION_BYTES = 48

# Clients of these versions read all formats of records: none is converted, and zstd is no error.
_NEVER_CONVERTED_SINCE = 10
_TOPIC_IDS_SINCE = 13

_LEADER_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))

# Errors of the broker or of its disk; the others tell a client that it is mistaken or outdated.
_FAILURES = frozenset(
    (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
)


class FetchHandler:
    """Resolve the fetch session, read from the replica manager, build the response."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metadata: MetadataCache,
        sessions: FetchSessions,
        hints: LeaderHints,
        down_conversion: DownConversion,
        max_bytes: int,
        quotas: ClientQuotas,
        may_read: MayRead,
    ) -> None:
        """`max_bytes` is `fetch.max.bytes`: the limit of a response, except for its first batch."""
        self._replica_manager = replica_manager
        self._metadata = metadata
        self._sessions = sessions
        self._hints = hints
        self._down_conversion = down_conversion
        self._max_bytes = max_bytes
        self._quota = quotas.fetch
        self._request_quota = quotas.request
        # None saves a call for each partition.
        self._may_read = None if may_read is may_read_all else may_read

    def handle(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResponse | Steps[FetchResponse | Deferred]:
        """Handle at once a consumer's request for the records of one partition without a session,
        as librdkafka sends them. All others, and what is not usual, take steps."""
        topics = request.topics
        if (
            request.session_epoch == FINAL_EPOCH
            and request.session_id == NO_SESSION
            and len(topics) == 1
            and len(topics[0].partitions) == 1
            and request.min_bytes <= 1
            and context.header.api_version >= _NEVER_CONVERTED_SINCE
            and not (self._quota.table.has_limits or self._request_quota.table.has_limits)
        ):
            response = self._records_of_one(context, request, topics[0])
            if response is not None:
                return response
        return self._handle_many(context, request)

    def _records_of_one(
        self, context: RequestContext, request: FetchRequest, topic: FetchTopic
    ) -> FetchResponse | Steps[FetchResponse | Deferred] | None:
        """The response with records of one partition, or why they cannot be read; None if there are
        none to return now."""
        version = context.header.api_version
        manager, snapshot = self._replica_manager, self._metadata.snapshot
        topic_id, position = topic.topic_id, topic.partitions[0]
        name = topic.topic if version < _TOPIC_IDS_SINCE else snapshot.topic_names.get(topic_id)
        known = None if name is None else snapshot.topics.get(name)
        if name is None or known is None or position.partition not in known.partitions:
            return None
        if not manager.has_records((name, position.partition), position.fetch_offset):
            return None
        params = self._params(request, version)
        if params.is_follower:
            return None
        if self._may_read is not None and not self._may_read(context, False)(name):
            return self._handle_many(context, request, _deny)  # one line in the security log
        data = manager.read_one(params, FetchItem(name, topic_id, position))
        if data is None:
            return None
        response = FetchResponse(responses=[FetchableTopicResponse(name, topic_id, [data])])
        if data.error_code:
            self._adapt_error(context, response, name, data)
        assert data.records is not None
        manager.context.topics.get(name).sent_bytes += len(data.records)
        return response

    def _handle_many(
        self,
        context: RequestContext,
        request: FetchRequest,
        may_read: Callable[[str], bool] | None = None,
    ) -> Steps[FetchResponse | Deferred]:
        """May pause between two partitions."""
        version = context.header.api_version
        params = self._params(request, version)
        is_follower = params.is_follower
        if self._quota.table.has_limits and not is_follower:
            self._limit(context, params)
        snapshot = self._metadata.snapshot
        if is_follower and params.replica_id in snapshot.brokers:
            context.connection.is_broker = True
        fetch = yield from self._sessions.context(
            request, version, snapshot.topic_names, is_follower
        )
        session = fetch.session
        changes = 0 if session is None else session.changes
        params.only_news = is_follower and not fetch.sends_all
        topics = snapshot.topics
        results: list[FetchResult] = []
        failed: list[FetchResult] = []
        wanted = fetch.items
        if may_read is None and self._may_read is not None:
            may_read = self._may_read(context, is_follower)
        if may_read is not None and is_follower and may_read(""):
            may_check = None  # a follower may read all topics or none
        else:
            may_check = may_read
        if may_check is not None or fetch.known_in is not topics:
            wanted = yield from _sort_out(wanted, topics, may_check, failed)
            if params.only_news and not failed:
                fetch.set_known_in(topics)  # of followers only: few sessions keep what they knew
        if session is not None:
            if failed and session.watch is not None:
                session.watch.scan_next_time()
            if failed or session.changes != changes:  # another request has changed or ended it
                session = None
        if wanted:  # else there is nothing to wait for: the response has errors only
            found = yield from self._replica_manager.fetch(
                params,
                wanted,
                lambda reading: respond_later(
                    context,
                    self._late_response(context, fetch, is_follower, reading, failed, may_read),
                ),
                session,
            )
            if found is None:
                return DEFERRED
            results = found
        return (yield from self._response(context, fetch, is_follower, results + failed))

    def _limit(self, context: RequestContext, params: FetchParams) -> None:
        """A larger response would exceed the quota and be throttled."""
        most = self._quota.max_at_once(context.principal.name, context.header.client_id or "")
        params.max_bytes = int(min(params.max_bytes, most))
        params.min_bytes = min(params.min_bytes, params.max_bytes)

    def _params(self, request: FetchRequest, version: int) -> FetchParams:
        state = request.replica_state
        if version < 15:
            params = FetchParams(request.replica_id)
        elif state is None:
            params = FetchParams()
        else:  # Only followers send it.
            params = FetchParams(state.replica_id, state.replica_epoch)
        params.max_wait_ms = request.max_wait_ms
        params.max_bytes = min(request.max_bytes, self._max_bytes)
        params.min_bytes = min(request.min_bytes, params.max_bytes)
        params.hard_limit = version <= 2
        if params.is_follower:
            params.isolation = READ_LOG_END
            return params
        params.isolation = READ_COMMITTED if request.isolation_level == 1 else READ_UNCOMMITTED
        params.leader_only = version < 11
        params.client_rack = request.rack_id
        return params

    def _late_response(
        self,
        context: RequestContext,
        fetch: FetchContext,
        is_follower: bool,
        reading: Steps[list[FetchResult]],
        failed: list[FetchResult],
        may_read: Callable[[str], bool] | None,
    ) -> Steps[FetchResponse | Deferred]:
        results = _still_allowed((yield from reading), may_read)
        return (yield from self._response(context, fetch, is_follower, results + failed))

    def _response(
        self,
        context: RequestContext,
        fetch: FetchContext,
        is_follower: bool,
        results: list[FetchResult],
    ) -> Steps[FetchResponse | Deferred]:
        if not is_follower and (
            self._quota.table.has_limits or self._request_quota.table.has_limits
        ):
            throttle_ms = self._throttle(context, fetch, results)
            if throttle_ms:
                error_code, session_id = fetch.throttled()
                context.throttle_time_ms = throttle_ms
                return FetchResponse(error_code=error_code, session_id=session_id)
        error_code, session_id, results = yield from fetch.finish(results)
        response = FetchResponse(error_code=error_code, session_id=session_id)
        statistics = self._replica_manager.context.topics
        last_topic: FetchableTopicResponse | None = None
        for number, (item, data) in enumerate(results):
            if number:
                yield
            topic, topic_id = item.topic, item.topic_id
            if data.error_code:
                self._adapt_error(context, response, topic, data)
            records = data.records
            if records is not None and (size := len(records)):
                if is_follower:
                    statistics.replicated_out_bytes += size
                elif topic is not None:
                    statistics.get(topic).sent_bytes += size
            if last_topic is None or last_topic.topic != topic or last_topic.topic_id != topic_id:
                last_topic = FetchableTopicResponse(topic or "", topic_id)
                response.responses.append(last_topic)
            last_topic.partitions.append(data)
        version, conversion = context.header.api_version, self._down_conversion
        if version < _NEVER_CONVERTED_SINCE and conversion.check(
            version, results, is_follower=is_follower
        ):
            conversion.convert_and_respond(context, response, results)
            return DEFERRED
        return response

    def _throttle(
        self, context: RequestContext, fetch: FetchContext, results: list[FetchResult]
    ) -> int:
        """The throttle time of a client that exceeds its quota, or its request quota.

        It gets an empty response then, whose records are not counted (KIP-219). The size is that of
        the whole response, as in Kafka: a client that polls at the end of its partitions exceeds
        its quota, too.
        """
        size = _RESPONSE_BYTES
        for _, data in results:
            if data.records or data.error_code or fetch.sends_all:
                size += _PARTITION_BYTES + len(data.records or b"")
        user, client_id = context.principal.name, context.header.client_id or ""
        now_ms = int(monotonic() * 1000)
        throttle_ms = max(self._quota.record(user, client_id, size, now_ms), context.count())
        if throttle_ms:
            self._quota.undo(user, client_id, size, now_ms)
        return throttle_ms

    def _adapt_error(
        self,
        context: RequestContext,
        response: FetchResponse,
        topic: str | None,
        data: PartitionData,
    ) -> None:
        version = context.header.api_version
        code = data.error_code
        if code in _FAILURES and topic is not None:
            self._replica_manager.context.topics.get(topic).failed_fetches += 1
        if code == ErrorCode.KAFKA_STORAGE_ERROR and version <= 5:
            # Old clients do not know the code; with this one they refresh their metadata.
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code not in _LEADER_ERRORS or version < 16 or topic is None:
            return
        hint = self._hints.find(context, topic, data.partition_index)
        if hint is None:
            return
        data.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
        node = hint.node
        if node is not None and all(
            each.node_id != node.node_id for each in response.node_endpoints
        ):
            response.node_endpoints.append(NodeEndpoint(*node))


def _deny(topic: str) -> bool:
    return False


def _sort_out(
    items: list[FetchItem],
    topics: Mapping[str, TopicMetadata],
    may_read: Callable[[str], bool] | None,
    failed: list[FetchResult],
) -> Steps[list[FetchItem]]:
    """Return the items that exist and may be read; add the errors of the others to `failed`."""
    wanted: list[FetchItem] = []
    for item in items:
        topic = item.topic
        if topic is None:
            failed.append(_failed(item, ErrorCode.UNKNOWN_TOPIC_ID))
        elif may_read is not None and not may_read(topic):
            failed.append(_failed(item, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            known = topics.get(topic)
            if known is None or item.partition not in known.partitions:
                failed.append(_failed(item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                wanted.append(item)
        if len(items) > 1:
            yield
    return wanted


def _still_allowed(
    results: list[FetchResult], may_read: Callable[[str], bool] | None
) -> list[FetchResult]:
    """Return the results, without the records of topics that the client may no longer read.

    An ACL may have changed while the request waited. Kafka sends them.
    """
    if may_read is None:
        return results
    topics = {item.topic for item, _ in results if item.topic is not None}
    denied = {topic for topic in topics if not may_read(topic)}
    if not denied:
        return results
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [_failed(item, code) if item.topic in denied else (item, data) for item, data in results]


def _failed(item: FetchItem, code: int) -> FetchResult:
    return item, PartitionData(item.partition, code, -1, -1, -1, records=b"")


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    if request.session_id:
        return  # The top-level code stands for the whole session.
    for topic in request.topics:
        rows = [
            PartitionData(requested.partition, code, -1, -1, -1, records=b"")
            for requested in topic.partitions
        ]
        response.responses.append(FetchableTopicResponse(topic.topic, topic.topic_id, rows))


ROUTES = (
    ApiRoute(
        ApiKey.FETCH,
        FetchHandler.handle,
        check="unchecked",
        errors=_error_rows,
        limits=FETCH,
    ),
)
