"""DescribeGroups (15), ListGroups (16) and DeleteGroups (42), all versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.groups.classic.group import GroupState
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import Items, itself
from ottla.broker.runtime.tasks import gather_limited, spawn
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.groups.share.share_groups import ShareGroups


# Share groups that are deleted at the same time: each waits while a share coordinator cannot be
# reached, and has as many requests in flight as it has share partitions, up to 64.
_DELETIONS_AT_ONCE = 16

# The first version of DescribeGroups whose clients know GROUP_ID_NOT_FOUND.
_NOT_FOUND_SINCE = 6


class GroupAdminHandlers:
    """Builds the responses of the administrative group requests."""

    def __init__(self, admin: GroupAdmin, shares: ShareGroups | None = None) -> None:
        """`shares` has the share groups (KIP-932), where they are enabled."""
        self._admin = admin
        self._shares = shares

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> Steps[DescribeGroupsResponse]:
        """From version 6 on GROUP_ID_NOT_FOUND for a group that is not there, or not classic
        (KIP-1043); before that its state is Dead."""
        is_error = context.header.api_version >= _NOT_FOUND_SINCE
        groups = []
        for group_id in request.groups:
            group = self._admin.describe(group_id)  # at once: members change in a pause
            if is_error and not group.error_code and group.group_state == GroupState.DEAD.value:
                group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                is_share = self._shares is not None and self._shares.has(group_id)
                is_other = is_share or self._admin.is_known(group_id)
                group.error_message = (
                    f"Group {group_id} is not a classic group."
                    if is_other
                    else f"Group {group_id} not found."
                )
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
            groups.append(group)
            yield
        return DescribeGroupsResponse(groups=groups)

    def list_groups(
        self, _: RequestContext, request: ListGroupsRequest
    ) -> Steps[ListGroupsResponse]:
        states, types = request.states_filter, request.types_filter
        error, groups = yield from self._admin.list_groups(states, types)
        listed = []
        for group in groups:
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=group.kind,
                )
            )
            yield
        if self._shares is not None and error != ErrorCode.COORDINATOR_NOT_AVAILABLE:
            found = self._shares.listed(states, types)
            listed += [
                ListedGroup(group.group_id, "share", group.state, "share") for group in found
            ]
        return ListGroupsResponse(error_code=error, groups=listed)

    def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> Deferred:
        shares = self._shares
        names = dict.fromkeys(request.groups_names)
        of_share = [] if shares is None else [name for name in names if shares.has(name)]
        if shares is not None and of_share:
            spawn(self._delete_with_shares(context, shares, names, of_share), name="DeleteGroups")
            return DEFERRED
        self._delete(context, names, {})
        return DEFERRED

    async def _delete_with_shares(
        self,
        context: RequestContext,
        shares: ShareGroups,
        names: dict[str, None],
        of_share: list[str],
    ) -> None:
        done: dict[str, int] = dict.fromkeys(of_share, ErrorCode.NONE)

        async def delete(name: str) -> None:
            try:
                await shares.delete(name)
            except Exception as error:
                done[name] = error_code(error)

        await gather_limited([delete(name) for name in of_share], _DELETIONS_AT_ONCE)
        self._delete(context, dict.fromkeys(name for name in names if name not in done), done)

    def _delete(
        self, context: RequestContext, names: dict[str, None], done: dict[str, int]
    ) -> None:
        def send_response(results: dict[str, int]) -> None:
            context.respond(
                DeleteGroupsResponse(
                    results=[
                        DeletableGroupResult(group_id=group_id, error_code=error)
                        for group_id, error in (done | results).items()
                    ]
                )
            )

        self._admin.delete_groups(names, send_response)


def _describe_groups_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for group_id in request.groups:
        response.groups.append(DescribedGroup(error_code=code, group_id=group_id))


def _delete_groups_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for group_id in request.groups_names:
        response.results.append(DeletableGroupResult(group_id, code))


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_GROUPS,
        GroupAdminHandlers.describe_groups,
        check="describe_groups",
        errors=_describe_groups_errors,
        items=(Items("groups", "groups", key=itself),),
    ),
    ApiRoute(
        ApiKey.LIST_GROUPS,
        GroupAdminHandlers.list_groups,
        check="list_groups",
    ),
    ApiRoute(
        ApiKey.DELETE_GROUPS,
        GroupAdminHandlers.delete_groups,
        check="delete_groups",
        errors=_delete_groups_errors,
        items=(Items("groups_names", "results", key=itself, each=False),),
    ),
)
