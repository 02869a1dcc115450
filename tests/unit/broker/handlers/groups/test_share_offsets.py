from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers.groups.share_offsets import ShareOffsetsHandlers
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import alter_share_group_offsets as alter
from ottla.protocol.messages import describe_share_group_offsets as describe
from tests.doubles.request_context import FakeContext
from tests.unit.broker.groups.share.test_share_groups import TOPIC, Scene


def handlers(scene: Scene, *, allows: bool = True) -> ShareOffsetsHandlers:
    topic = SimpleNamespace(topic_id=TOPIC, partitions={0: None, 1: None})
    snapshot = SimpleNamespace(topics={"t": topic}, topic_names={TOPIC: "t"})
    metadata = cast(Any, SimpleNamespace(snapshot=snapshot))
    return ShareOffsetsHandlers(scene.groups, metadata, lambda *_: allows)


async def response_of(handler: Any, request: Any) -> Any:
    context = FakeContext(request.API_KEY, 0)
    handler(cast(RequestContext, context), request)
    for _ in range(10):
        await asyncio.sleep(0)
    (response,) = context.responses
    return response


def altered(*offsets: int, topic: str = "t") -> alter.AlterShareGroupOffsetsRequest:
    rows = [alter.AlterShareGroupOffsetsRequestPartition(*each) for each in enumerate(offsets)]
    return alter.AlterShareGroupOffsetsRequest(
        "g", [alter.AlterShareGroupOffsetsRequestTopic(topic, rows)]
    )


def described(*groups: str) -> describe.DescribeShareGroupOffsetsRequest:
    rows = [describe.DescribeShareGroupOffsetsRequestGroup(name, None) for name in groups]
    return describe.DescribeShareGroupOffsetsRequest(rows)


async def test_an_empty_group_is_reset() -> None:
    scene = Scene()
    made = handlers(scene)
    await scene.beat("a")
    busy = await response_of(made.alter, altered(5))
    assert busy.error_code == ErrorCode.NON_EMPTY_GROUP
    await scene.beat("a", -1)
    done = await response_of(made.alter, altered(5, 7, 9))
    assert done.error_code == 0
    assert [row.error_code for row in done.responses[0].partitions] == [0, 0, 3]
    (group,) = (await response_of(made.describe, described("g"))).groups
    found = {row.partition_index: row.start_offset for row in group.topics[0].partitions}
    assert found == {0: 5, 1: 7}


async def test_unknown_groups_and_topics() -> None:
    scene = Scene()
    made = handlers(scene)
    (group,) = (await response_of(made.describe, described("?"))).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    missing = await response_of(made.alter, altered(5))
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_access() -> None:
    scene = Scene()
    await scene.beat("a")
    await scene.beat("a", -1)
    made = handlers(scene, allows=False)
    (group,) = (await response_of(made.describe, described("g"))).groups
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    denied = await response_of(made.alter, altered(5))
    assert denied.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
