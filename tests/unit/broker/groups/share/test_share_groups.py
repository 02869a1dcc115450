from __future__ import annotations

from collections.abc import Awaitable

import pytest

from ottla.broker.groups.commits import Committer
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.groups.share.share_groups import Assignment, Heartbeat, ShareGroups, assign
from ottla.broker.runtime.tasks import running_tasks
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.manual_timer import ManualTimer
from tests.unit.broker.groups.consumer_helpers import Catalog
from tests.unit.broker.share.helpers import MemoryPersister

TOPIC = (1).to_bytes(16)


class Scene:
    """A group coordinator with share groups, whose log is in memory."""

    def __init__(self, log: MemoryLog | None = None, partitions: int = 2) -> None:
        self.log = log or MemoryLog()
        self.timer = ManualTimer()
        self.catalog = Catalog(t=partitions)
        self.persister = MemoryPersister()
        self.coordinator = GroupCoordinator(
            GroupSettings(offsets_topic_num_partitions=1),
            self.log,
            self.timer,
            self.timer.clock,
            lambda callback: callback(),
            self.catalog,
            self.persister,
        )
        self.coordinator.startup()
        self.coordinator.on_elected(0, 0)
        assert self.coordinator.shares is not None
        self.groups: ShareGroups = self.coordinator.shares

    async def beat(
        self, member: str, epoch: int = 0, topics: list[str] | None = None, group: str = "g"
    ) -> Heartbeat:
        if topics is None and epoch == 0:
            topics = ["t"]
        request = ShareGroupHeartbeatRequest(group, member, epoch, None, topics)
        return await self.groups.heartbeat(request, "client", "/host")


async def code_of(awaitable: Awaitable[object]) -> int:
    with pytest.raises(KafkaError) as refused:
        await awaitable
    return refused.value.code


async def test_a_member_joins_and_gets_all_partitions() -> None:
    scene = Scene()
    assert await scene.beat("a") == Heartbeat(1, {TOPIC: [0, 1]})
    assert {key.partition for key in scene.persister.start_offsets} == {0, 1}
    assert await scene.beat("a", 1) == Heartbeat(1, None)


async def test_a_second_member_gets_a_part() -> None:
    scene = Scene()
    await scene.beat("a")
    assert await scene.beat("b") == Heartbeat(2, {TOPIC: [1]})
    assert await scene.beat("a", 1) == Heartbeat(2, {TOPIC: [0]})
    assert await scene.beat("a", 2) == Heartbeat(2, None)


async def test_a_member_leaves() -> None:
    scene = Scene()
    await scene.beat("a")
    await scene.beat("b")
    assert await scene.beat("b", -1) == Heartbeat(-1, None)
    assert await scene.beat("a", 1) == Heartbeat(3, {TOPIC: [0, 1]})


async def test_the_group_survives_a_new_coordinator() -> None:
    scene = Scene()
    await scene.beat("a")
    again = Scene(scene.log)
    group = again.groups.find("g")
    assert group is not None
    assert (group.epoch, group.members["a"].assigned) == (1, {TOPIC: [0, 1]})
    assert await again.beat("a", 1) == Heartbeat(1, None)
    assert [each.group_id for each in again.groups.all()] == ["g"]


async def test_a_session_expires() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.timer.advance(44_000)
    await scene.beat("a", 1)
    scene.timer.advance(44_000)
    group = scene.groups.find("g")
    assert group is not None
    assert group.members
    scene.timer.advance(2_000)
    for task in running_tasks():
        await task
    assert not group.members


async def test_new_partitions_are_assigned() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.catalog.grow("t", 3)
    assert await scene.beat("a", 1) == Heartbeat(2, {TOPIC: [0, 1, 2]})


async def test_partitions_wait_for_the_share_coordinator() -> None:
    scene = Scene(partitions=1)
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await scene.beat("a") == Heartbeat(1, {})
    group = scene.groups.find("g")
    assert group is not None
    group.initialize_at_s = 0.0  # the pause, as long as the attempt took, is over
    assert await scene.beat("a", 1) == Heartbeat(2, {TOPIC: [0]})


async def test_errors() -> None:
    scene = Scene()
    await scene.beat("a")
    assert await code_of(scene.beat("x", 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await code_of(scene.beat("x", -1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await code_of(scene.beat("a", 7)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert await code_of(scene.beat("a", 1, group="?")) == ErrorCode.GROUP_ID_NOT_FOUND
    for member, epoch, topics, group in (
        ("", 0, ["t"], "g"),
        ("b", 0, [], "g"),
        ("b", -2, None, "g"),
        ("b", 0, ["t"], ""),
    ):
        assert await code_of(scene.beat(member, epoch, topics, group)) == ErrorCode.INVALID_REQUEST
    scene.coordinator.on_resigned(0)
    assert await code_of(scene.beat("a", 1)) == ErrorCode.NOT_COORDINATOR


async def test_the_most_members() -> None:
    scene = Scene()
    scene.groups.limits = scene.groups.limits._replace(max_size=1)
    await scene.beat("a")
    assert await code_of(scene.beat("b")) == ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_failed_append_changes_nothing() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert await code_of(scene.beat("b")) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    group = scene.groups.find("g")
    assert group is not None
    assert set(group.members) == {"a"}


async def test_an_empty_group_of_another_type_stays() -> None:
    scene = Scene()
    scene.coordinator.partitions.find_or_create("g")
    assert await code_of(scene.beat("a")) == ErrorCode.GROUP_ID_NOT_FOUND
    assert scene.groups.find("g") is None


async def test_deletion() -> None:
    scene = Scene()
    await scene.beat("a")
    assert await code_of(scene.groups.delete("g")) == ErrorCode.NON_EMPTY_GROUP
    await scene.beat("a", -1)
    await scene.groups.delete("g")
    assert await code_of(scene.groups.delete("g")) == ErrorCode.GROUP_ID_NOT_FOUND
    assert scene.groups.all() == []


async def test_leaders_here_hear_of_a_deletion_and_of_a_reset() -> None:
    scene = Scene()
    heard: list[object] = []
    scene.groups._on_state_replaced = lambda *arguments: heard.append(arguments)
    await scene.beat("a")
    await scene.beat("a", -1)
    await scene.groups.reset("g", {TOPIC: {0: 5}})
    await scene.groups.delete("g")
    assert heard == [("g", False), ("g", True)]


async def test_a_share_group_has_no_committed_offsets() -> None:
    """Kafka refuses the commit, too; it would create a classic group of the same name."""
    scene = Scene()
    await scene.beat("a")
    offset = CommittedOffset(5, -1, "", 0, -1)
    partition = TopicPartition("t", 0)
    for group_id, expected in (("g", ErrorCode.GROUP_ID_NOT_FOUND), ("other", ErrorCode.NONE)):
        committer = Committer(group_id, "", None, -1, 8)
        results: list[dict[TopicPartition, int]] = []
        scene.coordinator.commits.commit(committer, {partition: offset}, results.append)
        scene.coordinator.commits.commit_transactional(
            *(committer, 1, 0), {partition: offset}, results.append
        )
        assert results[0] == {partition: expected}
        if expected:
            assert results[1] == {partition: expected}
    assert scene.coordinator.partitions.find("g") is None


async def test_the_state_of_a_deleted_topic_is_deleted() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.catalog.delete("t")
    scene.catalog.create("t", 1)  # again, with another id
    scene.groups.on_topics_deleted({"other"})
    assert not running_tasks()
    scene.groups.on_topics_deleted({"t"})
    for task in running_tasks():
        await task
    group = scene.groups.find("g")
    assert group is not None
    assert (group.initialized, scene.persister.start_offsets) == ({}, {})
    created = (2).to_bytes(16)
    assert await scene.beat("a", 1) == Heartbeat(2, {created: [0]})
    scene.groups.on_topics_deleted({"t"})  # the news of the first one come again
    assert not running_tasks()
    assert group.initialized == {created: [0]}


async def test_a_group_keeps_the_state_of_a_deleted_topic_that_cannot_be_deleted() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.catalog.delete("t")
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.groups.on_topics_deleted({"t"})
    for task in running_tasks():
        await task
    group = scene.groups.find("g")
    assert group is not None
    assert group.initialized == {TOPIC: [0, 1]}


async def test_a_deletion_that_fails_in_between_leaves_a_group_that_works() -> None:
    """One of two partitions has lost its state; the next member lets it be created."""
    scene = Scene()
    await scene.beat("a")
    await scene.beat("a", -1)
    scene.persister.next_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await code_of(scene.groups.delete("g")) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert {key.partition for key in scene.persister.start_offsets} == {0}
    assert (await scene.beat("b")).assignment == {TOPIC: [0, 1]}
    assert {key.partition for key in scene.persister.start_offsets} == {0, 1}


async def test_sessions_end_with_the_coordinator_of_the_group() -> None:
    scene = Scene()
    await scene.beat("a")
    await scene.beat("b", group="h")
    scene.coordinator.on_resigned(0)
    scene.timer.advance(50_000)
    assert not running_tasks()


A, B = b"a" * 16, b"b" * 16


def members(*names: str, topics: frozenset[bytes] = frozenset((A,))) -> dict[str, frozenset[bytes]]:
    return dict.fromkeys(names, topics)


def assigned(
    subscriptions: dict[str, frozenset[bytes]], partitions: dict[bytes, list[int]]
) -> dict[str, Assignment]:
    return run_at_once(assign(subscriptions, partitions))


def test_more_partitions_than_members() -> None:
    assert assigned(members("x", "y"), {A: [0, 1, 2]}) == {"x": {A: [0, 2]}, "y": {A: [1]}}


def test_more_members_than_partitions() -> None:
    found = assigned(members("x", "y", "z"), {A: [0, 1]})
    assert found == {"x": {A: [0]}, "y": {A: [1]}, "z": {A: [0]}}


def test_a_topic_begins_with_another_member() -> None:
    found = assigned(members("x", "y", topics=frozenset((A, B))), {A: [0], B: [0]})
    assert {name: sorted(topics) for name, topics in found.items()} == {"x": [A, B], "y": [A, B]}


def test_members_have_only_what_they_subscribe_to() -> None:
    subscriptions = {"x": frozenset((A,)), "y": frozenset((B,)), "z": frozenset[bytes]()}
    assert assigned(subscriptions, {A: [0], B: [0, 1]}) == {
        "x": {A: [0]},
        "y": {B: [0, 1]},
        "z": {},
    }


def test_no_partition_yet() -> None:
    assert assigned(members("x"), {A: []}) == {"x": {}}
