"""RemoteLogManager: which partitions are tiered, when their tasks run, and deleted topics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.broker.remote import remote_log_manager
from ottla.broker.runtime.tasks import abandoned_threads, spawn
from tests.doubles.eventually import eventually_async
from tests.doubles.tiered_broker import KEY, TieredBroker
from tests.doubles.tiered_partition import PARTITION


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[TieredBroker]:
    broker = TieredBroker(tmp_path)
    broker.manager.startup()
    yield broker
    await broker.stop()


def copied(broker: TieredBroker) -> int:
    return len(broker.scene.storage.objects)


async def test_a_leader_copies_and_finds_segments(broker: TieredBroker) -> None:
    scene, manager = broker.scene, broker.manager
    scene.append(3)
    manager.on_leadership([broker.replica], [])
    await eventually_async(lambda: scene.log.offsets.highest_remote_offset == 3)
    found = manager.segment_at(scene.log, 2)
    assert found is not None
    assert (found.start_offset, found.end_offset) == (2, 3)
    assert manager.segment_at(scene.log, 4) is None
    scene.append(1, epoch=1)
    await eventually_async(lambda: scene.log.offsets.highest_remote_offset == 5)


async def test_which_logs_are_tiered(broker: TieredBroker) -> None:
    log, manager = broker.scene.log, broker.manager
    assert manager.partition(log) == PARTITION
    tiered = log.config
    for other in ({"remote_storage_enable": False}, {"cleanup_policy": ("compact", "delete")}):
        log.update_config(tiered.replace(**other))
        assert manager.partition(log) is None
        assert manager.segment_at(log, 0) is None
    log.update_config(tiered)
    log.topic = "__consumer_offsets"
    assert manager.partition(log) is None


async def test_a_topic_that_becomes_tiered(broker: TieredBroker) -> None:
    scene, manager, replica = broker.scene, broker.manager, broker.replica
    tiered = scene.log.config
    scene.log.update_config(tiered.replace(remote_storage_enable=False))
    scene.append(2)
    manager.on_leadership([replica], [])
    scene.log.update_config(tiered)
    manager.settings_changed([replica])
    await eventually_async(lambda: copied(broker) == 1)
    scene.log.update_config(tiered.replace(remote_storage_enable=False))
    manager.settings_changed([replica])
    assert not scene.metadata.is_initialized(PARTITION)


async def test_the_last_leader_deletes_what_a_deleted_topic_has(broker: TieredBroker) -> None:
    scene, manager = broker.scene, broker.manager
    scene.append(3)
    manager.on_leadership([broker.replica], [])
    await eventually_async(lambda: copied(broker) == 2)
    # The controller stops the replicas first, and deletes them then.
    manager.on_stopped(KEY, is_deleted=False, with_topic=False)
    broker.replica.is_leader = False
    scene.storage.fail = ["delete"]
    manager.on_stopped(KEY, is_deleted=True, with_topic=True)
    await eventually_async(lambda: copied(broker) == 0)
    await eventually_async(lambda: not manager.metadata.is_initialized(PARTITION))
    assert manager.problems.first() is None


class HangingStorage:
    """Calls return when they may, as those of a mounted folder whose server is away."""

    def __init__(self, broker: TieredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called = threading.Event()
        self.may_go_on = threading.Event()
        storage = broker.scene.storage
        for name in ("copy_log_segment", "delete_log_segment", "fetch_index"):
            call = getattr(storage, name)

            def hang(*arguments: object, call: Callable[..., object] = call) -> object:
                self.called.set()
                assert self.may_go_on.wait(60)
                return call(*arguments)

            monkeypatch.setattr(storage, name, hang)


def overdue_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_OVERDUE_SECONDS", "_COPY_OVERDUE_SECONDS"):
        monkeypatch.setattr(remote_log_manager, name, 0.01)


async def test_a_copy_without_a_response_is_a_problem_while_it_lasts(
    broker: TieredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_at_once(monkeypatch)
    hanging, manager = HangingStorage(broker, monkeypatch), broker.manager
    broker.scene.append(3)
    manager.on_leadership([broker.replica], [])
    await eventually_async(
        lambda: "copy has had no response of the store" in str(manager.problem())
    )
    hanging.may_go_on.set()
    await eventually_async(lambda: copied(broker) == 2)
    await eventually_async(lambda: manager.problem() is None)


async def test_a_deletion_without_a_response_is_a_problem_while_it_lasts(
    broker: TieredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_at_once(monkeypatch)
    manager = broker.manager
    broker.scene.append(3)
    manager.on_leadership([broker.replica], [])
    await eventually_async(lambda: copied(broker) == 2)
    hanging = HangingStorage(broker, monkeypatch)
    manager.on_stopped(KEY, is_deleted=True, with_topic=True)
    await eventually_async(lambda: "deletion has had no response" in str(manager.problem()))
    hanging.may_go_on.set()
    await eventually_async(lambda: copied(broker) == 0)
    await eventually_async(lambda: manager.problem() is None)


async def test_a_read_without_a_response_is_a_problem_while_it_lasts(
    broker: TieredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_at_once(monkeypatch)
    manager, may_go_on = broker.manager, threading.Event()
    read = spawn(manager.readers.run(may_go_on.wait, 60), name="read")
    await eventually_async(lambda: "read has had no response" in str(manager.problem()))
    may_go_on.set()
    await read
    await eventually_async(lambda: manager.problem() is None)


async def test_a_stop_does_not_wait_for_a_store_that_hangs(
    broker: TieredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_log_manager, "_STOP_SECONDS", 0.01)
    monkeypatch.setattr(remote_log_manager, "_THREADS_SECONDS", 0.01)
    hanging, manager = HangingStorage(broker, monkeypatch), broker.manager
    broker.scene.append(3)
    manager.on_leadership([broker.replica], [])
    await eventually_async(hanging.called.is_set)
    async with asyncio.timeout(60):
        await manager.shutdown()
    assert len(abandoned_threads()) == 1
    hanging.may_go_on.set()
    await eventually_async(lambda: not abandoned_threads())


@pytest.mark.parametrize("is_leader", [True, False])
async def test_a_replica_that_moves_leaves_remote_segments(
    broker: TieredBroker, is_leader: bool
) -> None:
    scene, manager = broker.scene, broker.manager
    scene.append(2)
    manager.on_leadership([broker.replica], [])
    await eventually_async(lambda: copied(broker) == 1)
    broker.replica.is_leader = is_leader
    if not is_leader:
        manager.on_leadership([], [broker.replica])
    manager.on_stopped(KEY, is_deleted=True, with_topic=not is_leader)
    assert not manager.metadata.is_initialized(PARTITION)
    assert copied(broker) == 1


async def test_a_stop_lets_a_copy_end(tmp_path: Path) -> None:
    broker = TieredBroker(tmp_path)
    broker.scene.append(20)
    broker.manager.startup()
    broker.manager.on_leadership([broker.replica], [])
    await eventually_async(lambda: copied(broker) > 0)
    await broker.stop()
    topic = broker.scene.topic
    assert len(topic.values[0]) == 2 * copied(broker)


async def test_a_partition_keeps_its_tasks_when_tiered_storage_is_disabled(
    tmp_path: Path,
) -> None:
    """As long as it has records in remote storage only, or the topic names the setting."""
    broker = TieredBroker(tmp_path)  # whose tasks do not run
    manager, replica, log = broker.manager, broker.replica, broker.scene.log
    manager.on_leadership([replica], [])
    log.update_config(log.config.replace(remote_storage_enable=False))
    assert manager.partition(log) is None
    manager._names_remote_storage = {"t"}.__contains__
    assert manager.partition(log) == PARTITION
    manager._names_remote_storage = set[str]().__contains__
    manager.settings_changed([replica])
    assert list(manager.progress()) == []
    assert manager.follow(replica) == PARTITION  # its leader has some
    assert [topic for topic, _ in manager.progress()] == ["t"]
    assert manager.follow(replica) == PARTITION
    broker.scene.append(2)
    log.offsets.local_log_start_offset = 2
    manager.settings_changed([replica])
    assert [topic for topic, _ in manager.progress()] == ["t"]
    log.update_config(log.config.replace(cleanup_policy=("compact",)))
    assert manager.partition(log) == PARTITION
    await broker.stop()
