"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), versions 0 and 1 (KIP-848).

Version 1 is of Kafka 4: subscriptions by regular expression, and the type of each member. Where
`group.coordinator.rebalance.protocols` does not contain `consumer`, ApiVersions lists version 0 of
both, and each request gets UNSUPPORTED_VERSION, as in Kafka 3.9: a consumer with
`group.protocol=consumer` then says that the cluster does not have the protocol, and an admin client
sends DescribeGroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import MEMBER, Items
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import consumer_group_describe as described
from ottla.protocol.messages import consumer_group_heartbeat as heartbeats
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.groups.consumer.consumer_groups import ConsumerGroups
    from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
    from ottla.protocol.steps import Steps


class ConsumerGroupHandlers:
    """Hands the requests to the group coordinator."""

    #: Of both requests.
    max_version = 1

    def __init__(
        self,
        groups: ConsumerGroups,
        request_errors: GroupRequestErrorLog,
        is_share_group: Callable[[str], bool] | None = None,
    ) -> None:
        """`is_share_group` is given where share groups (KIP-932) are enabled."""
        self._groups = groups
        self._request_errors = request_errors
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
        return DEFERRED

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
        self._request_errors.log(
            context,
            "ConsumerGroupHeartbeat",
            request.group_id,
            request.member_id,
            request.member_epoch,
            ErrorCode.UNSUPPORTED_VERSION,
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
