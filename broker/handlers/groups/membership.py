"""JoinGroup (11), Heartbeat (12), LeaveGroup (13) and SyncGroup (14), all versions."""

from collections.abc import Callable

from ottla.broker.groups.classic.group import sync_error
from ottla.broker.groups.classic.membership import GroupMembership
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import MEMBER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.registry import ApiKey


class GroupMembershipHandlers:
    """Hands the requests to the group coordinator and adapts responses to the version."""

    def __init__(
        self,
        membership: GroupMembership,
        request_errors: GroupRequestErrorLog,
        is_share_group: Callable[[str], bool] | None = None,
    ) -> None:
        """`is_share_group` is given where share groups (KIP-932) are enabled."""
        self._membership = membership
        self._request_errors = request_errors
        self._is_share_group = is_share_group

    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> Deferred | JoinGroupResponse:
        version = context.header.api_version
        if self._is_share_group is not None and self._is_share_group(request.group_id):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            self._request_errors.log(
                context, "JoinGroup", request.group_id, request.member_id, -1, code
            )
            name = "" if version < 7 else None
            return JoinGroupResponse(error_code=code, protocol_name=name, member_id="")

        def send_response(response: JoinGroupResponse) -> None:
            self._request_errors.log(
                context,
                "JoinGroup",
                request.group_id,
                request.member_id,
                -1,
                response.error_code,
            )
            # "No protocol" is an empty name up to version 6 and null from version 7 on.
            if version < 7:
                response.protocol_name = response.protocol_name or ""
            elif response.protocol_name == "":
                response.protocol_name = None
            context.respond(response)

        self._membership.join(
            request,
            version,
            context.header.client_id or "",
            f"/{context.client_host}",  # as Java prints an address
            send_response,
        )
        return DEFERRED

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> Deferred | SyncGroupResponse:
        if context.header.api_version >= 5 and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

        def send_response(response: SyncGroupResponse) -> None:
            self._request_errors.log(
                context,
                "SyncGroup",
                request.group_id,
                request.member_id,
                request.generation_id,
                response.error_code,
            )
            context.respond(response)

        self._membership.sync(request, send_response)
        return DEFERRED

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        error = self._membership.heartbeat(request)
        if error:
            self._request_errors.log(
                context,
                "Heartbeat",
                request.group_id,
                request.member_id,
                request.generation_id,
                error,
            )
        return HeartbeatResponse(error_code=error)

    def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> Deferred:
        is_batch = context.header.api_version >= 3
        leaving = request.members if is_batch else [MemberIdentity(member_id=request.member_id)]

        def send_response(response: LeaveGroupResponse) -> None:
            for row in response.members or [MemberResponse(error_code=response.error_code)]:
                self._request_errors.log(
                    context, "LeaveGroup", request.group_id, row.member_id, -1, row.error_code
                )
            if not is_batch:
                # The request has one member, whose error is that of the response.
                error = response.error_code or response.members[0].error_code
                response = LeaveGroupResponse(error_code=error)
            context.respond(response)

        self._membership.leave(request.group_id, leaving, send_response)
        return DEFERRED


ROUTES = (
    ApiRoute(ApiKey.JOIN_GROUP, GroupMembershipHandlers.join_group, check="waiting_member"),
    ApiRoute(ApiKey.HEARTBEAT, GroupMembershipHandlers.heartbeat, check="member"),
    ApiRoute(ApiKey.LEAVE_GROUP, GroupMembershipHandlers.leave_group, check="member"),
    ApiRoute(
        ApiKey.SYNC_GROUP, GroupMembershipHandlers.sync_group, check="waiting_member", limits=MEMBER
    ),
)
