from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import cast

import pytest

from ottla.broker.replication import directory_failures
from ottla.broker.replication.directory_failures import LogDirFailureHandler
from ottla.broker.replication.partition import Partition
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import NoNode
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from ottla.protocol.topics import TopicPartition
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas, codes, no_fetchers
from tests.unit.broker.replication.test_leader_and_isr import stop


class Scene(Replicas):
    """A broker with so many directories; `gone` are the partitions that went offline."""

    def __init__(self, directories: int, *, needs_all: bool = False) -> None:
        super().__init__()
        paths = [f"/disk{number}" for number in range(directories)]
        self.logs = LogManager(paths, self.config, MemoryFileSystem())
        self.logs.load(self.clock.now_ms())
        self.leader_and_isr._log_manager = self.logs
        self.store = EmbeddedStore()
        self.gone: list[Partition] = []
        self.all_failed = 0
        self.failures = LogDirFailureHandler(
            *(self.logs, self.manager, self.store, no_fetchers(), self.gone.extend),
            self._all_failed,
            needs_all=needs_all,
        )

    def _all_failed(self) -> None:
        self.all_failed += 1

    async def events(self) -> list[str]:
        """What the controller hears of directories, as soon as it hears of any."""
        async with asyncio.timeout(60):
            while True:
                with suppress(NoNode):
                    found = await self.store.children(znodes.LOG_DIR_EVENT_NOTIFICATION)
                    if found:
                        return found
                await asyncio.sleep(0.001)

    def fail(self, path: str) -> None:
        for directory in self.logs.directories.all:
            if directory.path == path:
                directory.fail(OSError("broken"))


def test_the_partitions_of_a_broken_disk_go_offline() -> None:
    async def whole() -> None:
        scene = Scene(2)
        await scene.store.connect()
        scene.lead(0)
        scene.lead(1)
        broken = scene.log(0).log_directory.path
        scene.fail(broken)
        scene.failures.check()
        assert [partition.index for partition in scene.gone] == [0]
        assert scene.append(1, index=0).code == ErrorCode.KAFKA_STORAGE_ERROR
        assert scene.append(1, index=1).code == 0
        assert scene.all_failed == 0
        assert len(await scene.events()) == 1
        scene.failures.check()
        assert len(scene.gone) == 1, "a failure is dealt with once"
        await scene.store.close()

    asyncio.run(whole())


def test_only_the_partition_goes_offline_whose_directory_is_gone() -> None:
    async def whole() -> None:
        scene = Scene(1)
        await scene.store.connect()
        scene.lead(0, replicas=[1, 2])
        scene.lead(1)
        log = scene.log(0)
        log.log_directory.fs.remove_tree(log.path)
        waiting = scene.append(1, acks=-1)
        scene.logs.find_gone()
        scene.failures.check()
        assert [partition.index for partition in scene.gone] == [0]
        assert not scene.partition(0).is_leader
        assert scene.append(1, index=0).code == ErrorCode.KAFKA_STORAGE_ERROR
        assert scene.append(1, index=1).code == ErrorCode.NONE
        assert waiting.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(await scene.events()) == 1
        scene.failures.check()
        assert (len(scene.gone), scene.all_failed) == (1, 0)
        # The controller asks, and gives the partition to another broker.
        assert codes(scene.order(1)) == [ErrorCode.KAFKA_STORAGE_ERROR]
        await scene.store.close()

    asyncio.run(whole())


def test_a_topic_whose_log_is_gone_can_be_deleted_and_created_again() -> None:
    async def whole() -> None:
        scene = Scene(1)
        await scene.store.connect()
        scene.lead(0)
        log = scene.log(0)
        log.log_directory.fs.remove_tree(log.path)
        scene.logs.find_gone()
        scene.failures.check()
        assert stop(scene, delete=False) == ErrorCode.KAFKA_STORAGE_ERROR
        assert stop(scene, delete=True) == ErrorCode.NONE
        assert scene.logs.gone_logs == []
        scene.lead(0, epoch=10)
        assert scene.append(1, index=0).code == ErrorCode.NONE
        assert scene.log(0) is not log
        await scene.store.close()

    asyncio.run(whole())


def test_one_broken_disk_ends_a_broker_among_brokers_before_1_0() -> None:
    scene = Scene(2, needs_all=True)
    scene.lead(0)
    scene.fail(scene.log(0).log_directory.path)
    scene.failures.check()
    scene.failures.check()
    assert (len(scene.gone), scene.all_failed) == (1, 1)


def test_the_controller_is_notified_until_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_failures, "_RETRY_SECONDS", 0.001)

    async def whole() -> None:
        scene = Scene(2)  # its store is not connected yet
        scene.lead(0)
        scene.fail(scene.log(0).log_directory.path)
        scene.failures.check()
        await asyncio.sleep(0.01)
        await scene.store.connect()
        await scene.events()
        await scene.store.close()

    asyncio.run(whole())


def test_a_producer_that_waits_gets_a_response() -> None:
    async def whole() -> None:
        scene = Scene(2)
        await scene.store.connect()
        scene.lead(0, replicas=[1, 2])
        waiting = scene.append(1, acks=-1)
        assert not waiting.is_completed
        scene.fail(scene.log(0).log_directory.path)
        scene.failures.check()
        assert waiting.code == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(0.01)
        await scene.store.close()

    asyncio.run(whole())


def test_a_disk_that_fails_in_a_leader_and_isr_request() -> None:
    """The other partitions on it go offline at once, also one that has just become leader."""

    async def whole() -> None:
        scene = Scene(2)
        await scene.store.connect()
        scene.manager.on_directory_failure = scene.failures.handle
        for index in range(4):
            scene.follow(2, index)
        scene.lead(4, replicas=[1, 2])
        waiting = scene.append(1, acks=-1, index=4)
        led: list[int] = []
        scene.leader_and_isr.on_leadership = lambda leaders, _: led.extend(
            partition.index for partition in leaders
        )
        assert [scene.log(index).log_directory.path[-1] for index in range(5)] == list("01010")
        fs = cast(MemoryFileSystem, scene.logs.fs)
        fs.fail("open", errno.EIO, path_part="t-2/leader-epoch-checkpoint")
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index, leader=1, leader_epoch=1, isr=[1], replicas=[1, 2]
            )
            for index in range(4)
        ]
        request = LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState(TOPIC, TOPIC_ID, states)]
        )
        response = await scene.leader_and_isr.become_leader_or_follower(request, 7)
        assert codes(response)[2] == ErrorCode.KAFKA_STORAGE_ERROR
        assert [partition.index for partition in scene.gone] == [0, 2, 4]
        assert waiting.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert led == [1, 3]
        await asyncio.sleep(0.01)
        await scene.store.close()

    asyncio.run(whole())


def test_without_a_disk_there_is_nothing_left_to_do() -> None:
    scene = Scene(1)
    scene.lead(0)
    scene.fail("/disk0")
    scene.failures.handle("/disk0")
    assert scene.all_failed == 1


def test_replicas_without_space_are_requested_until_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller takes them for offline, and sends them nothing by itself."""
    monkeypatch.setattr(directory_failures, "_UNSTARTED_SECONDS", 0.001)

    async def whole() -> None:
        scene = Scene(2)
        await scene.store.connect()
        key = TopicPartition("t", 0)
        for _ in range(2):
            fs = cast(MemoryFileSystem, scene.logs.fs)
            fs.fail("open", errno.ENOSPC, path_part="t-0/")
            response = scene.order(1, is_new=True)
            assert response.topics[0].partition_errors[0].error_code
            assert scene.manager.unstarted == {key}
            scene.failures.check()
            scene.failures.check()
            (event,) = await scene.events()
            await scene.store.delete(f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/{event}")
            await asyncio.sleep(0)
        scene.lead(0)
        assert scene.manager.unstarted == set()
        scene.failures.check()
        await asyncio.sleep(0.02)
        assert await scene.store.children(znodes.LOG_DIR_EVENT_NOTIFICATION) == []
        # One that was deleted meanwhile is not requested.
        scene.manager.unstarted.add(TopicPartition("t", 7))
        scene.failures.check()
        assert scene.manager.unstarted == set()
        assert scene.gone == []
        await scene.store.close()

    asyncio.run(whole())
