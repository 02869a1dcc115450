from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers.groups.share_groups import ShareOffsetsHandlers
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.share.persister import SharePartitionKey, StateSummary
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import alter_share_group_offsets as alter
from ottla.protocol.messages import delete_share_group_offsets as delete
from ottla.protocol.messages import describe_share_group_offsets as describe
from ottla.protocol.topics import TopicPartition
from tests.doubles.request_context import FakeContext
from tests.unit.broker.groups.share.test_share_groups import TOPIC, Scene


def handlers(
    scene: Scene, *, allows: bool = True, end_offset: int | None = None
) -> ShareOffsetsHandlers:
    async def find_end_offset(where: TopicPartition) -> int | None:
        return end_offset

    topic = SimpleNamespace(topic_id=TOPIC, partitions={0: None, 1: None})
    snapshot = SimpleNamespace(topics={"t": topic}, topic_names={TOPIC: "t"})
    metadata = cast(Any, SimpleNamespace(snapshot=snapshot))
    return ShareOffsetsHandlers(scene.groups, metadata, lambda *_: allows, find_end_offset)


async def response_of(handler: Any, request: Any, version: int = 0) -> Any:
    context = FakeContext(request.API_KEY, version)
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
    assert (group.error_code, group.topics) == (0, [])
    row = describe.DescribeShareGroupOffsetsRequestGroup(
        "?",
        [
            describe.DescribeShareGroupOffsetsRequestTopic("t", [0, 9]),
            describe.DescribeShareGroupOffsetsRequestTopic("absent", [0]),
        ],
    )
    request = describe.DescribeShareGroupOffsetsRequest([row])
    (group,) = (await response_of(made.describe, request)).groups
    found = [
        (row.start_offset, row.error_code) for topic in group.topics for row in topic.partitions
    ]
    assert found == [(-1, 0), (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (-1, 0)]


async def test_new_offsets_create_a_group() -> None:
    scene = Scene()
    made = handlers(scene)
    unknown = await response_of(made.alter, altered(5, topic="absent"))
    assert unknown.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert scene.groups.find("g") is None
    assert (await response_of(made.alter, altered(5))).error_code == 0
    group = scene.groups.find("g")
    assert group is not None
    assert (group.state, group.epoch, group.target_epoch) == ("Empty", 1, 1)
    (described_group,) = (await response_of(made.describe, described("g"))).groups
    assert described_group.topics[0].partitions[0].start_offset == 5


async def test_access() -> None:
    scene = Scene()
    await scene.beat("a")
    await scene.beat("a", -1)
    made = handlers(scene, allows=False)
    (group,) = (await response_of(made.describe, described("g"))).groups
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    denied = await response_of(made.alter, altered(5))
    assert denied.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_the_lag() -> None:
    """From the start offset to the end, without what is delivered for good."""
    scene = Scene()
    await scene.beat("a")
    scene.persister.start_offsets = dict.fromkeys(scene.persister.start_offsets, 10)
    scene.persister.delivery_complete_count = 3

    async def lags(version: int, end_offset: int | None) -> set[int]:
        made = handlers(scene, end_offset=end_offset)
        (group,) = (await response_of(made.describe, described("g"), version)).groups
        return {row.lag for row in group.topics[0].partitions}

    assert await lags(1, 25) == {12}
    assert await lags(0, 25) == {-1}
    assert await lags(1, None) == {-1}
    scene.persister.delivery_complete_count = -1
    assert await lags(1, 25) == {-1}


async def test_partitions_and_groups_do_not_wait_for_each_other() -> None:
    """Each waits for 10 s while its share coordinator cannot be reached."""
    scene = Scene()
    await scene.beat("a")
    await scene.beat("a", group="h")
    gate, waiting = asyncio.Event(), []

    async def summary(key: SharePartitionKey, leader_epoch: int) -> StateSummary:
        waiting.append(key)
        await gate.wait()
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    scene.persister.summary = summary  # type: ignore[method-assign]
    context = FakeContext(90, 0)
    handlers(scene).describe(cast(RequestContext, context), described("g", "h"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert [(key.group_id, key.partition) for key in waiting] == [
        *(("g", 0), ("g", 1)),
        *(("h", 0), ("h", 1)),
    ]
    gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    found = [
        (group.group_id, row.partition_index, row.error_code)
        for group in context.responses[0].groups
        for row in group.topics[0].partitions
    ]
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found == [("g", 0, code), ("g", 1, code), ("h", 0, code), ("h", 1, code)]


async def test_offsets_are_deleted() -> None:
    scene = Scene()
    made = handlers(scene)
    await scene.beat("a")
    topics = [delete.DeleteShareGroupOffsetsRequestTopic(name) for name in ("t", "x")]
    request = delete.DeleteShareGroupOffsetsRequest("g", topics)
    busy = await response_of(made.delete, request)
    assert (busy.error_code, busy.responses) == (ErrorCode.NON_EMPTY_GROUP, [])
    await scene.beat("a", -1)
    done = await response_of(made.delete, request)
    assert [(row.topic_id, row.error_code) for row in done.responses] == [
        (TOPIC, 0),
        (bytes(16), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    group = scene.groups.find("g")
    assert group is not None
    assert group.initialized == {}
    again = await response_of(made.delete, request)
    assert again.responses[0].error_message == "There is no offset information to delete."
    request.group_id = "?"
    assert (await response_of(made.delete, request)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    denied = handlers(scene, allows=False)
    request.group_id = "g"
    (row, _) = (await response_of(denied.delete, request)).responses
    assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
