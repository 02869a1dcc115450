"""DescribeGroups, ListGroups and DeleteGroups in every version."""

import pytest

from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.doubles.request_context import Asked
from tests.unit.broker.groups.helpers import GROUP, T0, Setup


@pytest.fixture
def setup() -> Setup:
    made = Setup()
    made.stable_group()
    made.commit({T0: 1}, group_id="simple")
    return made


@pytest.fixture
def handlers(setup: Setup) -> GroupAdminHandlers:
    return GroupAdminHandlers(setup.coordinator.admin)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_described(handlers: GroupAdminHandlers, version: int) -> None:
    asked = Asked(handlers.describe_groups, DescribeGroupsRequest([GROUP, "unknown"]), version)
    found = asked.response(DescribeGroupsResponse).groups
    assert [(group.group_id, group.group_state) for group in found] == [
        (GROUP, "Stable"),
        ("unknown", "Dead"),
    ]
    assert found[0].authorized_operations == -(2**31)


def test_a_group_that_is_not_there_is_an_error_in_version_6(
    handlers: GroupAdminHandlers,
) -> None:
    asked = Asked(handlers.describe_groups, DescribeGroupsRequest([GROUP, "unknown"]), 6)
    known, unknown = asked.response(DescribeGroupsResponse).groups
    assert (known.error_code, known.error_message, known.group_state) == (0, None, "Stable")
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (unknown.error_message, unknown.group_state) == ("Group unknown not found.", "Dead")


def test_authorized_operations_on_request(handlers: GroupAdminHandlers) -> None:
    asked = Asked(handlers.describe_groups, DescribeGroupsRequest([GROUP], True), 5)
    assert asked.response(DescribeGroupsResponse).groups[0].authorized_operations == 328


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(handlers: GroupAdminHandlers, version: int) -> None:
    request = ListGroupsRequest(["Stable"] if version >= 4 else [])
    found = Asked(handlers.list_groups, request, version).response(ListGroupsResponse).groups
    assert {group.group_id for group in found} == ({GROUP} if version >= 4 else {GROUP, "simple"})
    by_id = {group.group_id: group for group in found}
    assert by_id[GROUP].protocol_type == "consumer"
    assert by_id[GROUP].group_state == ("Stable" if version >= 4 else "")
    assert by_id[GROUP].group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_once_each(handlers: GroupAdminHandlers, version: int) -> None:
    request = DeleteGroupsRequest(["simple", GROUP, "simple"])
    found = Asked(handlers.delete_groups, request, version).response(DeleteGroupsResponse).results
    assert [(row.group_id, row.error_code) for row in found] == [
        ("simple", ErrorCode.NONE),
        (GROUP, ErrorCode.NON_EMPTY_GROUP),
    ]
