"""DescribeGroups (15), ListGroups (16) and DeleteGroups (42), all versions."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code
from ottla.broker.requests.long_responses import respond_in_slices, respond_when_built
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import Items, itself
from ottla.broker.runtime.tasks import gather_in_slices, spawn
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
from ottla.protocol.steps import run_at_once

if TYPE_CHECKING:
    from ottla.broker.groups.share.share_groups import ShareGroups


# A row costs 5 us to build and encode: a response of these takes 5 ms at once.
MAX_GROUPS_AT_ONCE = 1_000
_ROWS_PER_STEP = 64

# Share groups that are deleted at the same time: each waits while a share coordinator cannot be
# reached, and has as many requests in flight as it has share partitions, up to 64.
_DELETIONS_AT_ONCE = 16


class GroupAdminHandlers:
    """Builds the responses of the administrative group requests."""

    def __init__(self, admin: GroupAdmin, shares: ShareGroups | None = None) -> None:
        """`shares` has the share groups (KIP-932), where they are enabled."""
        self._admin = admin
        self._shares = shares

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse | Coroutine[Any, Any, Deferred]:
        return respond_when_built(context, self._describe(request))

    def _describe(
        self, request: DescribeGroupsRequest
    ) -> Generator[None, None, DescribeGroupsResponse]:
        groups = []
        for group_id in request.groups:
            group = self._admin.describe(group_id)  # at once: members change
            groups.append(group)
            for _ in range(0, len(group.members), _ROWS_PER_STEP):
                yield
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    def list_groups(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse | Coroutine[Any, Any, Deferred]:
        steps = self._list(request)
        if self._admin.group_count > MAX_GROUPS_AT_ONCE:
            return respond_in_slices(context, steps)
        return run_at_once(steps)

    def _list(self, request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        states, types = request.states_filter, request.types_filter
        error, groups = yield from self._admin.list_in_steps(states, types)
        listed = []
        for number, group in enumerate(groups):
            if number % _ROWS_PER_STEP == 0:
                yield
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=group.kind,
                )
            )
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

        await gather_in_slices([delete(name) for name in of_share], _DELETIONS_AT_ONCE)
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
    ApiRoute(ApiKey.LIST_GROUPS, GroupAdminHandlers.list_groups, check="list_groups"),
    ApiRoute(
        ApiKey.DELETE_GROUPS,
        GroupAdminHandlers.delete_groups,
        check="delete_groups",
        errors=_delete_groups_errors,
        items=(Items("groups_names", "results", key=itself, each=False),),
    ),
)
