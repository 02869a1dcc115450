"""DescribeGroups (15), ListGroups (16) and DeleteGroups (42), all versions."""

from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


class GroupAdminHandlers:
    """Builds the responses of the administrative group requests."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        groups = [self._admin.describe(group_id) for group_id in request.groups]
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    def list_groups(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        error, groups = self._admin.list_groups(request.states_filter, request.types_filter)
        return ListGroupsResponse(
            error_code=error,
            groups=[
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=group.kind,
                )
                for group in groups
            ],
        )

    def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> Deferred:
        def send_response(results: dict[str, int]) -> None:
            context.respond(
                DeleteGroupsResponse(
                    results=[
                        DeletableGroupResult(group_id=group_id, error_code=error)
                        for group_id, error in results.items()
                    ]
                )
            )

        self._admin.delete_groups(dict.fromkeys(request.groups_names), send_response)
        return DEFERRED
