"""ShareAcknowledge (79), versions 1 and 2 (KIP-932); version 2 has renewals (KIP-1222).

READ on the group and on each topic. An acknowledgement is durable when the response is sent.
"""

from __future__ import annotations

from collections.abc import Coroutine
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
from ottla.broker.share.sessions import FINAL_EPOCH, SessionKey, SharedPartition, end_session
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import LeaderHints
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.security.authorization.access_control import MayRead
    from ottla.broker.share.sessions import ShareSessions
    from ottla.broker.share.share_partitions import SharePartitions


class ShareAcknowledgeHandler:
    """Advances the share session and changes the share partitions."""

    def __init__(
        self,
        shares: SharePartitions,
        sessions: ShareSessions,
        metadata: MetadataCache,
        hints: LeaderHints,
        may_read: MayRead,
    ) -> None:
        self._hints = hints
        self._shares = shares
        self._sessions = sessions
        self._metadata = metadata
        self._may_read = may_read

    def handle(
        self, context: RequestContext, request: ShareAcknowledgeRequest
    ) -> Deferred | ShareAcknowledgeResponse:
        try:
            key = session_key(request)
            self._sessions.acknowledge(key, request.share_session_epoch)
        except Exception as error:
            return ShareAcknowledgeResponse(
                error_code=error_code(error), error_message=error_message(error)
            )
        # What happens to each record is decided now; the rest waits for the share coordinator.
        acknowledged = acknowledge(
            self._shares,
            key,
            acknowledgements_of(request.topics),
            self._metadata.snapshot.topic_names,
            self._may_read(context, False),
            request.is_renew_ack,
        )
        is_last = request.share_session_epoch == FINAL_EPOCH
        ended = end_session(self._sessions, self._shares, key) if is_last else None
        spawn(self._respond(context, key, acknowledged, ended), name="ShareAcknowledge")
        return DEFERRED

    async def _respond(
        self,
        context: RequestContext,
        key: SessionKey,
        acknowledged: Coroutine[Any, Any, AcknowledgeResults],
        ended: Coroutine[Any, Any, None] | None,
    ) -> None:
        results = await acknowledged
        if ended is not None:
            await ended
        response = ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self._shares.settings.limits(key.group_id).lock_duration_ms
        )
        topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
        for where, result in results.items():
            topic = topics.get(where.topic_id)
            if topic is None:
                topic = topics[where.topic_id] = ShareAcknowledgeTopicResponse(where.topic_id)
                response.responses.append(topic)
            row = PartitionData(where.partition, result.error_code, result.error_message)
            topic.partitions.append(row)
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._add_leader(context, response, where, row)
        context.respond(response)

    def _add_leader(
        self,
        context: RequestContext,
        response: ShareAcknowledgeResponse,
        where: SharedPartition,
        row: PartitionData,
    ) -> None:
        name = self._metadata.snapshot.topic_names.get(where.topic_id, "")
        hint = self._hints.find(context, name, where.partition)
        if hint is None:
            return
        row.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
        node = hint.node
        if node is not None and all(
            each.node_id != node.node_id for each in response.node_endpoints
        ):
            response.node_endpoints.append(NodeEndpoint(*node))


ROUTES = (ApiRoute(ApiKey.SHARE_ACKNOWLEDGE, ShareAcknowledgeHandler.handle, check="share_member"),)
