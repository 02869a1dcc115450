"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69) of the newer group protocol (KIP-848).

Versions: 0 as Kafka 3.9 has it, and 1 of Kafka 4, with subscriptions by pattern and the kind of
each member. Listed where `group.coordinator.rebalance.protocols` has `consumer` in it.
"""

from ottla.broker.groups.consumer.consumer_groups import ConsumerGroups
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class ConsumerGroupHandlers:
    """Hands the requests to the coordinator."""

    def __init__(self, groups: ConsumerGroups, request_errors: GroupRequestErrorLog) -> None:
        self._groups = groups
        self._request_errors = request_errors

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Deferred:
        def reply(response: ConsumerGroupHeartbeatResponse) -> None:
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
            reply,
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
