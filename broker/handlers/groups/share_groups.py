"""ShareGroupHeartbeat (76) and ShareGroupDescribe (77), version 1 (KIP-932).

Listed where `group.coordinator.rebalance.protocols` contains `share`. Where another broker of the
cluster does not serve share groups a heartbeat gets UNSUPPORTED_VERSION, and the log says why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.share.share_groups import ASSIGNOR, ShareGroups
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.long_responses import respond_when_built
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import share_group_describe as described
from ottla.protocol.messages import share_group_heartbeat as heartbeats
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.groups.share.records import Topics
    from ottla.broker.groups.share.share_group import ShareMember
    from ottla.protocol.steps import Steps


class ShareGroupHandlers:
    """Hands the requests to the group coordinator."""

    def __init__(
        self,
        groups: ShareGroups,
        metadata: MetadataCache,
        check_cluster: Callable[[], Awaitable[None]],
    ) -> None:
        """`check_cluster` raises KafkaError where share groups cannot work (`ClusterSupport`)."""
        self._groups = groups
        self._metadata = metadata
        self._check_cluster = check_cluster

    def heartbeat(
        self, context: RequestContext, request: heartbeats.ShareGroupHeartbeatRequest
    ) -> Deferred:
        spawn(self._heartbeat(context, request), name="ShareGroupHeartbeat")
        return DEFERRED

    async def _heartbeat(
        self, context: RequestContext, request: heartbeats.ShareGroupHeartbeatRequest
    ) -> None:
        try:
            await self._check_cluster()
            result = await self._groups.heartbeat(
                request, context.header.client_id or "", f"/{context.client_host}"
            )
        except Exception as error:
            context.respond(
                heartbeats.ShareGroupHeartbeatResponse(
                    error_code=error_code(error), error_message=error_message(error)
                )
            )
            return
        response = heartbeats.ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=result.member_epoch,
            # As in Kafka, a member that leaves gets no interval.
            heartbeat_interval_ms=(
                self._groups.limits.heartbeat_interval_ms(request.group_id)
                if result.member_epoch >= 0
                else 0
            ),
        )
        if result.assignment is not None:
            rows = sorted(result.assignment.items())
            response.assignment = heartbeats.Assignment(
                [heartbeats.TopicPartitions(topic_id, indexes) for topic_id, indexes in rows]
            )
        context.respond(response)

    def describe(
        self, context: RequestContext, request: described.ShareGroupDescribeRequest
    ) -> described.ShareGroupDescribeResponse | Coroutine[Any, Any, Deferred]:
        return respond_when_built(context, self._describe_all(request))

    def _describe_all(
        self, request: described.ShareGroupDescribeRequest
    ) -> Steps[described.ShareGroupDescribeResponse]:
        rows = []
        for group_id in request.group_ids:
            rows.append((yield from self._describe(group_id)))
        if request.include_authorized_operations:
            for row in rows:
                if not row.error_code:
                    row.authorized_operations = GROUP_OPERATIONS
        return described.ShareGroupDescribeResponse(groups=rows)

    def _describe(self, group_id: str) -> Steps[described.DescribedGroup]:
        try:
            group = self._groups.find(group_id)
        except KafkaError as error:
            return described.DescribedGroup(error_code=error.code, group_id=group_id)
        if group is None:
            return described.DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found.",
                group_id=group_id,
            )
        members = [copy(member) for member in group.members.values()]  # of this moment
        found = described.DescribedGroup(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=ASSIGNOR,
        )
        for member in members:
            found.members.append(self._member(member))
            yield
        return found

    def _member(self, member: ShareMember) -> described.Member:
        return described.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            assignment=described.Assignment(self._rows(member.assigned)),
        )

    def _rows(self, topics: Topics) -> list[described.TopicPartitions]:
        names = self._metadata.snapshot.topic_names
        return [
            described.TopicPartitions(topic_id, names.get(topic_id, ""), indexes)
            for topic_id, indexes in sorted(topics.items())
        ]


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for group_id in request.group_ids:
        response.groups.append(described.DescribedGroup(code, message, group_id))


ROUTES = (
    ApiRoute(
        ApiKey.SHARE_GROUP_HEARTBEAT, ShareGroupHandlers.heartbeat, check="share_group_heartbeat"
    ),
    ApiRoute(
        ApiKey.SHARE_GROUP_DESCRIBE,
        ShareGroupHandlers.describe,
        check="share_group_describe",
        errors=_error_rows,
    ),
)
