from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
from ottla.broker.handlers.groups.group_admin import GroupAdminHandlers
from ottla.broker.handlers.groups.membership import GroupMembershipHandlers
from ottla.broker.handlers.groups.share_groups import ShareGroupHandlers
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.steps import run_at_once
from tests.doubles.request_context import FakeContext
from tests.unit.broker.groups.share.test_share_groups import TOPIC, Scene


def handlers(scene: Scene, code: int = 0) -> ShareGroupHandlers:
    """`code` is the error of the check of the cluster."""

    async def check() -> None:
        if code:
            raise KafkaError(code)

    snapshot = SimpleNamespace(topic_names={TOPIC: "t"})
    errors = GroupRequestErrorLog(scene.coordinator.events, scene.timer.clock.now_ms)
    metadata = cast(Any, SimpleNamespace(snapshot=snapshot))
    return ShareGroupHandlers(scene.groups, metadata, check, errors)


async def beat(made: ShareGroupHandlers, epoch: int = 0) -> ShareGroupHeartbeatResponse:
    context = FakeContext(76, 1)
    request = ShareGroupHeartbeatRequest("g", "m", epoch, None, ["t"])
    made.heartbeat(cast(RequestContext, context), request)
    for _ in range(10):
        await asyncio.sleep(0)
    (response,) = context.responses
    assert isinstance(response, ShareGroupHeartbeatResponse)
    return response


async def test_a_member_joins_and_is_described() -> None:
    made = handlers(Scene())
    response = await beat(made)
    assert (response.member_epoch, response.heartbeat_interval_ms) == (1, 5000)
    assert response.assignment is not None
    (row,) = response.assignment.topic_partitions
    assert (row.topic_id, row.partitions) == (TOPIC, [0, 1])
    request = ShareGroupDescribeRequest(["g", "?"], include_authorized_operations=True)
    context = FakeContext(77, 1)
    known, unknown = run_at_once(made.describe(cast(RequestContext, context), request)).groups
    assert (known.group_state, known.group_epoch, known.assignor_name) == ("Stable", 1, "simple")
    assert [member.member_id for member in known.members] == ["m"]
    assert known.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert known.authorized_operations > 0
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_errors() -> None:
    made = handlers(Scene())
    assert (await beat(made, 5)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_broker_of_the_cluster_has_no_share_groups() -> None:
    response = await beat(handlers(Scene(), ErrorCode.UNSUPPORTED_VERSION))
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_member_leaves_when_a_broker_without_share_groups_has_come() -> None:
    scene = Scene()
    await beat(handlers(scene))
    response = await beat(handlers(scene, ErrorCode.UNSUPPORTED_VERSION), -1)
    assert (response.error_code, response.member_epoch) == (ErrorCode.NONE, -1)
    group = scene.groups.find("g")
    assert group is not None
    assert not group.members


async def test_another_coordinator() -> None:
    scene = Scene()
    scene.coordinator.on_resigned(0)
    request = ShareGroupDescribeRequest(["g"])
    context = FakeContext(77, 1)
    (row,) = run_at_once(handlers(scene).describe(cast(RequestContext, context), request)).groups
    assert row.error_code == ErrorCode.NOT_COORDINATOR


async def test_share_groups_are_listed_and_deleted() -> None:
    scene = Scene()
    await scene.beat("a")
    made = GroupAdminHandlers(scene.coordinator.admin, scene.groups)
    context = cast(RequestContext, FakeContext(16, 5))
    request = ListGroupsRequest(types_filter=["Share"])
    listed = run_at_once(made.list_groups(context, request)).groups
    assert [(row.group_id, row.group_state, row.group_type) for row in listed] == [
        ("g", "Stable", "share")
    ]
    request = ListGroupsRequest(types_filter=["classic"])
    assert not run_at_once(made.list_groups(context, request)).groups
    request = ListGroupsRequest(states_filter=["Empty"])
    assert not run_at_once(made.list_groups(context, request)).groups
    await scene.beat("a", -1)
    deleting = FakeContext(42, 2)
    made.delete_groups(cast(RequestContext, deleting), DeleteGroupsRequest(["g", "?"]))
    for _ in range(10):
        await asyncio.sleep(0)
    (response,) = deleting.responses
    assert isinstance(response, DeleteGroupsResponse)
    results = {row.group_id: row.error_code for row in response.results}
    assert results == {"g": 0, "?": ErrorCode.GROUP_ID_NOT_FOUND}
    assert not scene.groups.all()


async def test_groups_are_deleted_at_the_same_time() -> None:
    """Each waits for 10 s while the share coordinator of a partition cannot be reached."""
    scene = Scene()
    gate, waiting = asyncio.Event(), []
    for group in ("g", "h"):
        await scene.beat("a", group=group)
        await scene.beat("a", -1, group=group)

    async def delete(key: SharePartitionKey) -> None:
        waiting.append(key.group_id)
        await gate.wait()
        if key.group_id == "g":
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    scene.persister.delete = delete  # type: ignore[method-assign]
    made = GroupAdminHandlers(scene.coordinator.admin, scene.groups)
    deleting = FakeContext(42, 2)
    made.delete_groups(cast(RequestContext, deleting), DeleteGroupsRequest(["g", "?", "h"]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert set(waiting) == {"g", "h"}
    gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    results = {row.group_id: row.error_code for row in deleting.responses[0].results}
    unknown = ErrorCode.GROUP_ID_NOT_FOUND
    assert results == {"g": ErrorCode.COORDINATOR_NOT_AVAILABLE, "?": unknown, "h": 0}


async def test_members_of_other_protocols_cannot_join_a_share_group() -> None:
    scene = Scene()
    await scene.beat("a")
    errors = GroupRequestErrorLog(scene.coordinator.events, scene.timer.clock.now_ms)
    classic = GroupMembershipHandlers(scene.coordinator.membership, errors, scene.groups.has)
    refused = classic.join_group(
        cast(RequestContext, FakeContext(11, 9)), JoinGroupRequest(group_id="g")
    )
    assert isinstance(refused, JoinGroupResponse)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    context = FakeContext(68, 1)
    ConsumerGroupHandlers(cast(Any, None), errors, cast(Any, None), scene.groups.has).heartbeat(
        cast(RequestContext, context), ConsumerGroupHeartbeatRequest(group_id="g")
    )
    (response,) = context.responses
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
