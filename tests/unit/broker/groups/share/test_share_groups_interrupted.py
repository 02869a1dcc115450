"""Share groups whose coordinator changes, or whose append ends late, while a request waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.groups.commits import Committer
from ottla.broker.groups.member_timers import TimerKind
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.groups.share import state_partitions
from ottla.broker.groups.share.share_groups import Heartbeat
from ottla.broker.runtime.tasks import running_tasks, spawn
from ottla.broker.share.persister import SharePartitionKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.doubles.pace import steps_per_turn
from tests.unit.broker.groups.share.test_share_groups import TOPIC, Scene, code_of

OFFSETS = {TOPIC: {0: 5}}


class SlowPersister:
    """`initialize` and `delete` wait for the gate."""

    def __init__(self, scene: Scene) -> None:
        self.gate = asyncio.Event()
        self.calls = 0  # of `initialize`
        persister = scene.persister
        initialize, delete = persister.initialize, persister.delete

        async def slow_initialize(key: SharePartitionKey, state_epoch: int, offset: int) -> None:
            self.calls += 1
            await self.gate.wait()
            await initialize(key, state_epoch, offset)

        async def slow_delete(key: SharePartitionKey) -> None:
            await self.gate.wait()
            await delete(key)

        persister.initialize = slow_initialize  # type: ignore[method-assign]
        persister.delete = slow_delete  # type: ignore[method-assign]


async def other_coordinator(scene: Scene, epoch: int) -> None:
    """Another broker coordinates the group meanwhile, where member b joins."""
    scene.coordinator.on_resigned(0, epoch)
    other = Scene(scene.log)
    other.catalog = scene.catalog
    other.persister.start_offsets = dict(scene.persister.start_offsets)
    assert (await other.beat("b")).member_epoch == 2
    other.coordinator.on_resigned(0, epoch + 1)
    scene.coordinator.on_elected(0, epoch + 1)


async def check_that_it_is_refused(
    scene: Scene, slow: SlowPersister, waiting: asyncio.Task[Any]
) -> None:
    """The request continues after all that, and changes neither memory nor log."""
    before = described(scene)
    slow.gate.set()
    with pytest.raises(KafkaError) as refused:
        await waiting
    assert refused.value.code == ErrorCode.NOT_COORDINATOR
    assert described(scene) == before
    assert described(Scene(scene.log)) == before


def described(scene: Scene) -> tuple[int, dict[str, int]]:
    group = scene.groups.find("g")
    assert group is not None
    return group.epoch, {member_id: each.epoch for member_id, each in group.members.items()}


async def test_a_heartbeat_that_waited_for_another_coordinator_stores_nothing() -> None:
    """It would take the epochs of the group back, and assign partitions without the members that
    have joined there."""
    scene = Scene()
    await scene.beat("a")
    scene.catalog.grow("t", 3)
    slow = SlowPersister(scene)
    waiting = spawn(scene.beat("c"), name="heartbeat")
    await asyncio.sleep(0)
    await other_coordinator(scene, 1)
    await check_that_it_is_refused(scene, slow, waiting)


async def test_a_deletion_that_waited_for_another_coordinator_keeps_the_group() -> None:
    scene = Scene()
    await scene.beat("a")
    await scene.beat("a", -1)
    slow = SlowPersister(scene)
    waiting = spawn(scene.groups.delete("g"), name="delete")
    await asyncio.sleep(0)
    scene.coordinator.on_resigned(0, 1)
    other = Scene(scene.log)
    await other.beat("b")
    scene.coordinator.on_elected(0, 2)
    await check_that_it_is_refused(scene, slow, waiting)


@pytest.mark.parametrize("request_name", ["heartbeat", "reset"])
async def test_a_group_of_another_type_comes_while_the_first_request_waits(
    request_name: str,
) -> None:
    """Of two groups with one name, the other one could not commit offsets."""
    scene = Scene()
    slow = SlowPersister(scene)
    first = scene.beat("a") if request_name == "heartbeat" else scene.groups.reset("g", OFFSETS)
    waiting = spawn(first, name=request_name)
    await asyncio.sleep(0)
    commit(scene)
    slow.gate.set()
    assert await code_of(waiting) == ErrorCode.GROUP_ID_NOT_FOUND
    assert scene.groups.find("g") is None
    assert commit(scene) == [ErrorCode.NONE]


async def test_the_name_is_taken_when_the_group_is_being_stored() -> None:
    scene = Scene()
    scene.log.hold = True
    waiting = spawn(scene.beat("a"), name="heartbeat")
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.groups.find("g") is None
    assert scene.groups.has("g")
    scene.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert await code_of(waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not scene.groups.has("g")


def commit(scene: Scene) -> list[int]:
    """A consumer that manages its partitions itself commits an offset."""
    codes: list[int] = []
    where, value = TopicPartition("t", 0), CommittedOffset(1, -1, "", 0)
    scene.coordinator.commits.commit(
        Committer("g"), {where: value}, lambda result: codes.extend(result.values())
    )
    return codes


async def test_a_session_that_expires_as_the_coordinator_changes_has_no_timer_any_more() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.timer.advance(46_000)  # the task that removes the member has not run yet
    scene.coordinator.on_resigned(0, 1)
    for task in running_tasks():
        await task
    scene.timer.advance(46_000)
    assert not running_tasks()


async def test_a_session_that_expired_before_the_group_was_loaded_again_starts_again() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.timer.advance(46_000)  # the task that removes the member has not run yet
    scene.coordinator.on_resigned(0, 1)
    scene.coordinator.on_elected(0, 2)
    scene.groups.timers.end("g")  # as if its sessions had not started yet
    for task in running_tasks():
        await task
    assert described(scene)[1] == {"a": 1}


@pytest.mark.parametrize("resigns", [False, True])
async def test_members_change_while_the_sessions_start(resigns: bool) -> None:
    scene = Scene()
    names = [f"m{number}" for number in range(70)]
    for name in names:
        await scene.beat(name)
    scene.groups.timers.end("g")
    partition = scene.coordinator.partitions.get_active(0)
    assert partition is not None
    steps = scene.groups.start_sessions(partition)
    next(steps)
    started = set(names[:32])
    if resigns:
        scene.coordinator.on_resigned(0, 1)
        started.clear()
    else:
        await scene.beat(names[-1], -1)
        started = set(names[:-1])
    run_at_once(steps)
    running = {
        name for name in names if scene.groups.timers.is_running(TimerKind.SESSION, "g", name)
    }
    assert running == started


async def test_a_member_whose_removal_fails_is_removed_later() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.log.next_error = ErrorCode.NOT_ENOUGH_REPLICAS
    for left in ({"a": 1}, {}):
        scene.timer.advance(46_000)
        for task in running_tasks():
            await task
        assert described(scene)[1] == left


async def test_a_change_that_is_committed_late_is_in_memory_as_in_the_log() -> None:
    scene = Scene()
    await scene.beat("a")
    scene.log.hold = True
    waiting = spawn(scene.beat("b"), name="heartbeat")
    await asyncio.sleep(0)
    assert scene.log.held
    scene.log.time_out_all(ErrorCode.REQUEST_TIMED_OUT)
    scene.log.hold = False
    assert await code_of(waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert described(scene) == described(Scene(scene.log)) == (2, {"a": 1, "b": 2})
    assert await scene.beat("b") == Heartbeat(2, {TOPIC: [1]})
    # A member that heard of an error only, and does not come back, has a session as others.
    scene.timer.advance(44_000)
    await scene.beat("a", 1)
    scene.timer.advance(2_000)
    for task in running_tasks():
        await task
    assert described(scene) == described(Scene(scene.log)) == (3, {"a": 2})


async def test_an_assignment_that_another_coordinator_interrupts_is_not_stored() -> None:
    """That of many partitions is computed in turns."""
    scene = Scene(partitions=60)
    await scene.beat("a")
    with steps_per_turn(5):
        waiting = spawn(scene.beat("c"), name="heartbeat")
        await asyncio.sleep(0)
        assert not waiting.done()
        await other_coordinator(scene, 1)
    before = described(scene)
    assert await code_of(waiting) == ErrorCode.NOT_COORDINATOR
    assert described(scene) == before
    assert described(Scene(scene.log)) == before


async def test_a_heartbeat_of_a_group_that_did_not_change_computes_nothing() -> None:
    scene = Scene()
    await scene.beat("a")
    await scene.beat("a", 1)
    asked: list[str] = []
    describe = scene.catalog.describe
    scene.catalog.describe = lambda name: asked.append(name) or describe(name)  # type: ignore[method-assign,func-returns-value]
    assert await scene.beat("a", 1) == Heartbeat(1, None)
    assert asked == []
    scene.catalog.grow("t", 3)
    assert await scene.beat("a", 1) == Heartbeat(2, {TOPIC: [0, 1, 2]})
    await scene.beat("b")
    assert (await scene.beat("a", 2)).assignment == {TOPIC: [0, 2]}


async def test_members_do_not_wait_one_after_the_other_for_a_share_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition of `__share_group_state` has no leader: the heartbeats of all members have to
    come within their sessions."""
    scene = Scene(partitions=1)
    slow = SlowPersister(scene)
    monkeypatch.setattr(state_partitions, "INITIALIZE_TIMEOUT_S", 0.1)
    members = [f"member-{number}" for number in range(10)]
    await asyncio.gather(*(scene.beat(member) for member in members))
    assert slow.calls == 1
    slow.gate.set()
    group = scene.groups.find("g")
    assert group is not None
    group.initialize_at_s = 0.0  # the pause, as long as the attempt took, is over
    await scene.beat(members[0])
    assert slow.calls == 2
    assert group.initialized == {TOPIC: [0]}
