"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), versions 0 and 1 (KIP-848).

Version 1 is of Kafka 4: subscriptions by regular expression, and the type of each member. Where
`group.coordinator.rebalance.protocols` does not contain `consumer`, ApiVersions lists version 0 of
both, and each request gets UNSUPPORTED_VERSION, as in Kafka 3.9: a consumer with
`group.protocol=consumer` then says that the cluster does not have the protocol, and an admin client
sends DescribeGroups.

If another broker of the cluster does not have the protocol, heartbeats get UNSUPPORTED_VERSION too,
and ApiVersions lists version 0 of them. Members leave or expire; their committed offsets stay, and
the groups can be described.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.groups.cluster_support import CONSUMER
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_message
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import MEMBER, Items
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import consumer_group_describe as described
from ottla.protocol.messages import consumer_group_heartbeat as heartbeats
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.groups.cluster_support import ClusterSupport
    from ottla.broker.groups.consumer.consumer_groups import ConsumerGroups
    from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
    from ottla.protocol.steps import Steps


_NOT_ENABLED = (
    "the consumer protocol is not enabled: add `consumer` to group.coordinator.rebalance.protocols"
)


class ConsumerGroupHandlers:
    """Hands the requests to the group coordinator."""

    #: Of both requests.
    max_version = 1

    def __init__(
        self,
        groups: ConsumerGroups,
        request_errors: GroupRequestErrorLog,
        support: ClusterSupport,
        is_share_group: Callable[[str], bool] | None = None,
    ) -> None:
        """`is_share_group` is given where share groups (KIP-932) are enabled."""
        self._groups = groups
        self._request_errors = request_errors
        self._support = support
        self._is_share_group = is_share_group

    def heartbeat(
        self, context: RequestContext, request: heartbeats.ConsumerGroupHeartbeatRequest
    ) -> Deferred:
        if self._is_share_group is not None and self._is_share_group(request.group_id):
            context.respond(
                heartbeats.ConsumerGroupHeartbeatResponse(
                    error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                    error_message=f"Group {request.group_id} is not a consumer group.",
                )
            )
            return DEFERRED
        if request.member_epoch < 0 or self._support.serves(CONSUMER):
            self._handle_heartbeat(context, request)
        else:
            spawn(self._check_first(context, request), name="ConsumerGroupHeartbeat")
        return DEFERRED

    async def _check_first(
        self, context: RequestContext, request: heartbeats.ConsumerGroupHeartbeatRequest
    ) -> None:
        try:
            await self._support.check(CONSUMER)
        except KafkaError as error:
            reason = error_message(error)
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                self._request_errors.log_refused(
                    context, "ConsumerGroupHeartbeat", request.group_id, reason or ""
                )
            context.respond(
                heartbeats.ConsumerGroupHeartbeatResponse(
                    error_code=error.code, error_message=reason
                )
            )
            return
        self._handle_heartbeat(context, request)

    def _handle_heartbeat(
        self, context: RequestContext, request: heartbeats.ConsumerGroupHeartbeatRequest
    ) -> None:
        def send_response(response: heartbeats.ConsumerGroupHeartbeatResponse) -> None:
            if response.error_code:
                self._request_errors.log(
                    context,
                    "ConsumerGroupHeartbeat",
                    request.group_id,
                    request.member_id,
                    request.member_epoch,
                    response.error_code,
                )
            context.respond(response)

        self._groups.membership.heartbeat(
            request,
            context.header.api_version,
            context.header.client_id or "",
            f"/{context.client_host}",  # as Java prints an address
            send_response,
        )

    def describe(
        self, _: RequestContext, request: described.ConsumerGroupDescribeRequest
    ) -> Steps[described.ConsumerGroupDescribeResponse]:
        groups = []
        for group_id in request.group_ids:
            group = yield from self._groups.admin.describe(group_id)
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
            groups.append(group)
            yield
        return described.ConsumerGroupDescribeResponse(groups=groups)


class ConsumerGroupsNotEnabled:
    """Stands in for `ConsumerGroupHandlers` where that protocol is not enabled."""

    #: Of both requests; the only one of Kafka 3.9.
    max_version = 0

    def __init__(self, request_errors: GroupRequestErrorLog) -> None:
        self._request_errors = request_errors

    def heartbeat(
        self, context: RequestContext, request: heartbeats.ConsumerGroupHeartbeatRequest
    ) -> heartbeats.ConsumerGroupHeartbeatResponse:
        self._request_errors.log_refused(
            context, "ConsumerGroupHeartbeat", request.group_id, _NOT_ENABLED
        )
        return heartbeats.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

    def describe(
        self, _context: RequestContext, request: described.ConsumerGroupDescribeRequest
    ) -> described.ConsumerGroupDescribeResponse:
        """Return an error for each group, without a log line: admin clients try this first."""
        groups = [
            described.DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
            for group_id in request.group_ids
        ]
        return described.ConsumerGroupDescribeResponse(groups=groups)


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for group_id in request.group_ids:
        response.groups.append(described.DescribedGroup(code, message, group_id))


ROUTES = (
    ApiRoute(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ConsumerGroupHandlers.heartbeat,
        check="member",
        limits=MEMBER,
    ),
    ApiRoute(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ConsumerGroupHandlers.describe,
        check="consumer_group_describe",
        errors=_error_rows,
        items=(Items("group_ids", "groups"),),
    ),
    ApiRoute(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ConsumerGroupsNotEnabled.heartbeat,
        check="member",
        limits=MEMBER,
    ),
    ApiRoute(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ConsumerGroupsNotEnabled.describe,
        check="consumer_group_describe",
        errors=_error_rows,
        items=(Items("group_ids", "groups"),),
    ),
)
