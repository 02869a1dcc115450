"""Fetch (1), versions 0 to 17: reads record batches, for consumers and for followers.

Versions: 0-2 may truncate the last batch; 3 a limit for the whole response, and the first batch
whole even above it (KIP-74); 4 isolation levels and magic 2, below it down-conversion; 5 log start
offset; 7 fetch sessions (KIP-227); 9 leader epochs; 10 zstd; 11 reading from followers
(KIP-392); 12 flexible, diverging epochs; 13 topic ids instead of names; 15 the replica's epoch; 16
the endpoints of new leaders (KIP-951); 17 directory ids of replicas.

A partition without new records has empty records in the response, never null.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.common.leader_hints import LeaderHints
from ottla.broker.replication.delayed_fetch import FetchParams
from ottla.broker.replication.fetch_sessions import (
    FetchContext,
    FetchItem,
    FetchResult,
    FetchSessions,
)
from ottla.broker.replication.large_fetches import (
    MAX_FOLLOWED_PER_TURN,
    MAX_PARTITIONS_PER_TURN,
    PARTITIONS_PER_STEP,
    fetch_many,
)
from ottla.broker.replication.partition import READ_COMMITTED, READ_LOG_END, READ_UNCOMMITTED
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.slices import in_parts, run_in_slices
from ottla.broker.security.authorization.access_control import may_read_all
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, TopicMetadata
    from ottla.broker.handlers.common.down_conversion import DownConversion
    from ottla.broker.quotas.client_quotas import ClientQuotas
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.security.authorization.access_control import MayRead

logger = logging.getLogger("ottla.fetch")

# Of a response without topics, and of a partition without records with its share of the topic.
_RESPONSE_BYTES = 16
_PARTITION_BYTES = 48

_LEADER_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))

# Errors of the broker or of its disk; the others tell a client that it is mistaken or outdated.
_FAILURES = frozenset(
    (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
)


class FetchHandler:
    """Resolves the fetch session, reads from the replica manager, builds the response."""

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
    ) -> Deferred | Coroutine[Any, Any, Deferred]:
        version = context.header.api_version
        params = self._params(request, version)
        if self._quota.table and not params.is_follower:
            self._limit(context, params)
        snapshot = self._metadata.snapshot
        fetch = self._sessions.context(request, version, snapshot.topic_names, params.is_follower)
        items = fetch.items()
        if request.topics and _is_large(request, len(items), params.is_follower):
            return self._handle_in_slices(context, fetch, items, params)
        params.only_news = params.is_follower and not fetch.sends_all
        topics = snapshot.topics
        failed: list[FetchResult] = []
        wanted: list[FetchItem] = []
        may_read = None if self._may_read is None else self._may_read(context, params.is_follower)
        if may_read is None and fetch.is_known_in(topics):
            wanted, items = items, []  # all, without a look at each
        _sort_out(items, topics, may_read, wanted, failed)
        if params.only_news and not failed:
            fetch.set_known_in(topics)  # of followers only: few sessions keep what they knew
        if not wanted:
            # There is nothing to wait for: the response has errors only.
            self._response(context, fetch, failed, params.is_follower)
            return DEFERRED

        def respond(results: list[FetchResult]) -> None:
            allowed = _still_allowed(results, may_read)
            self._response(context, fetch, allowed + failed, params.is_follower)

        self._replica_manager.fetch_messages(params, wanted, respond)
        return DEFERRED

    async def _handle_in_slices(
        self,
        context: RequestContext,
        fetch: FetchContext,
        items: list[FetchItem],
        params: FetchParams,
    ) -> Deferred:
        """All partitions are read, also those of a follower without news."""
        topics = self._metadata.snapshot.topics
        failed: list[FetchResult] = []
        wanted: list[FetchItem] = []
        may_read = None if self._may_read is None else self._may_read(context, params.is_follower)

        def sort_out(items: Iterable[FetchItem]) -> None:
            _sort_out(items, topics, may_read, wanted, failed)

        async def respond(results: list[FetchResult]) -> None:
            try:
                found = _still_allowed(results, may_read) + failed
                await self._respond_in_slices(context, fetch, found, params.is_follower)
            except Exception:
                logger.exception("Unexpected error responding to a fetch of many partitions")
                context.close("the response to its fetch failed")

        await run_in_slices(in_parts(items, PARTITIONS_PER_STEP, sort_out))
        if wanted:
            await fetch_many(self._replica_manager, params, wanted, respond)
        else:
            await respond([])
        return DEFERRED

    def _limit(self, context: RequestContext, params: FetchParams) -> None:
        """A larger response would exceed the quota and be throttled."""
        most = self._quota.max_at_once(context.principal.name, context.header.client_id or "")
        params.max_bytes = int(min(params.max_bytes, most))
        params.min_bytes = min(params.min_bytes, params.max_bytes)

    def _params(self, request: FetchRequest, version: int) -> FetchParams:
        params = FetchParams()
        state = request.replica_state
        if version >= 15:
            if state is not None:  # Only followers send it.
                params.replica_id = state.replica_id
                params.replica_epoch = state.replica_epoch
        else:
            params.replica_id = request.replica_id
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

    def _response(
        self,
        context: RequestContext,
        fetch: FetchContext,
        results: list[FetchResult],
        is_follower: bool,
    ) -> None:
        if self._is_throttled(context, fetch, results, is_follower):
            return
        error_code, session_id, results = fetch.finish(results)
        response = FetchResponse(error_code=error_code, session_id=session_id)
        self._add_rows(context, response, results, is_follower)
        if not self._converts(context, fetch, response, results, is_follower):
            context.respond(response)

    async def _respond_in_slices(
        self,
        context: RequestContext,
        fetch: FetchContext,
        results: list[FetchResult],
        is_follower: bool,
    ) -> None:
        """As `_response`."""
        if self._is_throttled(context, fetch, results, is_follower):
            return
        error_code, session_id, results = await run_in_slices(fetch.finish_in_steps(results))
        response = FetchResponse(error_code=error_code, session_id=session_id)

        def add_rows(some: Iterable[FetchResult]) -> None:
            self._add_rows(context, response, some, is_follower)

        await run_in_slices(in_parts(results, PARTITIONS_PER_STEP, add_rows))
        if not self._converts(context, fetch, response, results, is_follower):
            await context.respond_in_slices(response)

    def _is_throttled(
        self,
        context: RequestContext,
        fetch: FetchContext,
        results: list[FetchResult],
        is_follower: bool,
    ) -> bool:
        """Whether the client exceeds a quota and got an empty response."""
        if is_follower or not (self._quota.table or self._request_quota.table):
            return False
        throttle_ms = self._throttle(context, fetch, results)
        if not throttle_ms:
            return False
        error_code, session_id = fetch.throttled()
        context.respond(FetchResponse(error_code=error_code, session_id=session_id), throttle_ms)
        return True

    def _converts(
        self,
        context: RequestContext,
        fetch: FetchContext,
        response: FetchResponse,
        results: list[FetchResult],
        is_follower: bool,
    ) -> bool:
        """Whether records are converted for an old client, and the response is sent after that."""
        version, conversion = context.header.api_version, self._down_conversion
        if version >= 10 or not conversion.check(version, results, is_follower=is_follower):
            return False
        conversion.convert_and_respond(context, response, results, fetch.items())
        return True

    def _add_rows(
        self,
        context: RequestContext,
        response: FetchResponse,
        results: Iterable[FetchResult],
        is_follower: bool,
    ) -> None:
        topics = response.responses
        statistics = self._replica_manager.context.topics
        last_topic = topics[-1] if topics else None
        for topic, topic_id, data in results:
            if data.error_code:
                self._adapt_error(context, response, topic, data)
            records = data.records
            if records:
                if is_follower:
                    statistics.replicated_out_bytes += len(records)
                elif topic is not None:
                    statistics.get(topic).sent_bytes += len(records)
            if last_topic is None or last_topic.topic != topic or last_topic.topic_id != topic_id:
                last_topic = FetchableTopicResponse(topic or "", topic_id)
                topics.append(last_topic)
            last_topic.partitions.append(data)

    def _throttle(
        self, context: RequestContext, fetch: FetchContext, results: list[FetchResult]
    ) -> int:
        """The throttle time of a client that exceeds its quota, or its request quota.

        It gets an empty response then, whose records are not counted (KIP-219). The size is that of
        the whole response, as in Kafka: a client that polls at the end of its partitions exceeds
        its quota, too.
        """
        size = _RESPONSE_BYTES
        for _, _, data in results:
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


def _is_large(request: FetchRequest, read: int, is_follower: bool) -> bool:
    """`read`: the partitions of the session, which are all read if it is."""
    changed = sum(len(topic.partitions) for topic in request.topics)
    if changed > MAX_PARTITIONS_PER_TURN:
        return True
    return is_follower and changed > MAX_FOLLOWED_PER_TURN and read <= 4 * changed


def _sort_out(
    items: Iterable[FetchItem],
    topics: Mapping[str, TopicMetadata],
    may_read: Callable[[str], bool] | None,
    wanted: list[FetchItem],
    failed: list[FetchResult],
) -> None:
    """Adds the items that exist and may be read to `wanted`, the others' errors to `failed`."""
    for item in items:
        topic, topic_id, position = item
        if topic is None:
            failed.append((topic, topic_id, _failed(position, ErrorCode.UNKNOWN_TOPIC_ID)))
            continue
        if may_read is not None and not may_read(topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            failed.append((topic, topic_id, _failed(position, code)))
            continue
        known = topics.get(topic)
        if known is None or position.partition not in known.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            failed.append((topic, topic_id, _failed(position, code)))
        else:
            wanted.append(item)


def _still_allowed(
    results: list[FetchResult], may_read: Callable[[str], bool] | None
) -> list[FetchResult]:
    """The results, without the records of topics that the client may not read any more: an ACL may
    have changed while the request waited. Kafka sends them."""
    if may_read is None:
        return results
    topics = {topic for topic, _, _ in results if topic is not None}
    denied = {topic for topic in topics if not may_read(topic)}
    if not denied:
        return results
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        (topic, topic_id, PartitionData(data.partition_index, code, -1, -1, -1, records=b""))
        if topic in denied
        else (topic, topic_id, data)
        for topic, topic_id, data in results
    ]


def _failed(position: object, code: int) -> PartitionData:
    index: int = position.partition  # type: ignore[attr-defined]
    return PartitionData(index, code, -1, -1, -1, records=b"")
