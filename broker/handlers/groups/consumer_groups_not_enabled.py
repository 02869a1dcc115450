"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69) where that protocol is not enabled.

ApiVersions lists version 0 of both, and each request gets UNSUPPORTED_VERSION, as in Kafka 3.9:
a consumer with `group.protocol=consumer` then says that the cluster does not have the protocol,
and an admin client sends DescribeGroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
    from ottla.broker.requests.request_context import RequestContext
    from ottla.protocol.messages.consumer_group_describe import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
    )
    from ottla.protocol.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    )


class ConsumerGroupsNotEnabled:
    """Stands in for `ConsumerGroupHandlers`."""

    #: Of both requests; the only one of Kafka 3.9.
    max_version = 0

    def __init__(self, request_errors: GroupRequestErrorLog) -> None:
        self._request_errors = request_errors

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        # Imported late, here and below: most brokers get none of these requests.
        from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

        self._request_errors.log(
            *(context, "ConsumerGroupHeartbeat", request.group_id, request.member_id),
            *(request.member_epoch, ErrorCode.UNSUPPORTED_VERSION),
        )
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

    def describe(
        self, _context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        """An error for each group. It is not logged: admin clients send this request first."""
        from ottla.protocol.messages.consumer_group_describe import (
            ConsumerGroupDescribeResponse,
            DescribedGroup,
        )

        groups = [
            DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
            for group_id in request.group_ids
        ]
        return ConsumerGroupDescribeResponse(groups=groups)
