"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), versions 0 and 1 (KIP-848).

Version 1 is of Kafka 4: subscriptions by regular expression, and the type of each member. These
serve brokers whose `group.coordinator.rebalance.protocols` contains `consumer`; for the others see
`consumer_groups_not_enabled`.
"""

from collections.abc import Callable

from ottla.broker.groups.consumer.consumer_groups import ConsumerGroups
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


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
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Deferred:
        if self._is_share_group is not None and self._is_share_group(request.group_id):
            context.respond(
                ConsumerGroupHeartbeatResponse(
                    error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                    error_message=f"Group {request.group_id} is not a consumer group.",
                )
            )
            return DEFERRED

        def send_response(response: ConsumerGroupHeartbeatResponse) -> None:
            if response.error_code:
                self._request_errors.log(
                    *(context, "ConsumerGroupHeartbeat", request.group_id, request.member_id),
                    *(request.member_epoch, response.error_code),
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
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        groups = [self._groups.admin.describe(group_id) for group_id in request.group_ids]
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=groups)
