"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup as their versions have them."""

import pytest

from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.doubles.request_context import Asked
from tests.unit.broker.groups.helpers import Setup


def refusals(setup: Setup) -> GroupRequestErrorLog:
    return GroupRequestErrorLog(setup.coordinator.events, setup.timer.clock.now_ms)


def request(member_id: str = "", group_id: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"x")],
    )


class Group:
    """A coordinator behind its handlers, and one member that joined in this version."""

    def __init__(self, version: int) -> None:
        self.setup = Setup()
        self.handlers = GroupMembershipHandlers(
            self.setup.coordinator.membership, refusals(self.setup)
        )
        joined = self.join(version)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = self.join(version, joined.member_id)
        assert joined.error_code == ErrorCode.NONE
        self.joined = joined
        self.member = joined.member_id

    def join(self, version: int, member_id: str = "", group_id: str = "g") -> JoinGroupResponse:
        asked = Asked(self.handlers.join_group, request(member_id, group_id), version)
        return asked.response(JoinGroupResponse)


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins(version: int) -> None:
    group = Group(version)
    assert group.member.startswith("client-")
    assert group.joined.protocol_name == "range"
    assert group.joined.protocol_type == ("consumer" if version >= 7 else None)
    member = group.setup.group().members[group.member]
    assert member.rebalance_timeout_ms == (20_000 if version else 10_000)
    assert member.client_host == "/127.0.0.1"


@pytest.mark.parametrize("version", range(10))
def test_without_a_protocol_the_name_is_empty_or_null(version: int) -> None:
    response = Group(3).join(version, group_id="")
    assert response.error_code == ErrorCode.INVALID_GROUP_ID
    assert response.protocol_name == (None if version >= 7 else "")


def test_a_client_without_a_name() -> None:
    setup = Setup()
    handlers = GroupMembershipHandlers(setup.coordinator.membership, refusals(setup))
    response = Asked(handlers.join_group, request(), 0, client_id=None).response(JoinGroupResponse)
    assert response.member_id.startswith("-")


@pytest.mark.parametrize("version", range(6))
def test_every_version_syncs(version: int) -> None:
    group = Group(3)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=group.member,
        protocol_type="consumer" if version >= 5 else None,
        protocol_name="range" if version >= 5 else None,
        assignments=[SyncGroupRequestAssignment(group.member, b"mine")],
    )
    response = Asked(group.handlers.sync_group, sync, version).response(SyncGroupResponse)
    assert (response.error_code, response.assignment) == (ErrorCode.NONE, b"mine")
    assert response.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize(("kind", "name"), [(None, None), ("consumer", None), (None, "range")])
def test_from_version_5_a_sync_names_its_protocol(kind: str | None, name: str | None) -> None:
    group = Group(3)
    sync = SyncGroupRequest("g", 1, group.member, None, kind, name)
    response = Asked(group.handlers.sync_group, sync, 5).response(SyncGroupResponse)
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
def test_every_version_heartbeats(version: int) -> None:
    group = Group(3)
    beat = HeartbeatRequest("g", 1, group.member)
    response = Asked(group.handlers.heartbeat, beat, version).response(HeartbeatResponse)
    assert response.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3))
def test_old_versions_leave_one_by_one(version: int) -> None:
    group = Group(3)
    for error in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
        leave = LeaveGroupRequest("g", group.member)
        response = Asked(group.handlers.leave_group, leave, version).response(LeaveGroupResponse)
        assert (response.error_code, response.members) == (error, [])
    leave = LeaveGroupRequest("", group.member)
    response = Asked(group.handlers.leave_group, leave, version).response(LeaveGroupResponse)
    assert response.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(3, 6))
def test_new_versions_leave_together(version: int) -> None:
    group = Group(3)
    leave = LeaveGroupRequest("g", members=[MemberIdentity(group.member), MemberIdentity("x")])
    response = Asked(group.handlers.leave_group, leave, version).response(LeaveGroupResponse)
    assert response.error_code == ErrorCode.NONE
    assert [row.error_code for row in response.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_delayed_response() -> None:
    group = Group(3)
    sync = SyncGroupRequest("g", 1, group.member)
    Asked(group.handlers.sync_group, sync, 3)
    waiting = Asked(group.handlers.join_group, request(), 3)
    assert waiting.is_pending
    group.setup.timer.advance(20_000)
    assert waiting.response(JoinGroupResponse).generation_id == 2
